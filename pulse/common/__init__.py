"""Small pure helpers without a home of their own: ids, times, texts, numbers."""
