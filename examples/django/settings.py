"""Settings of the project; DATABASE_* and PULSE_CONNECT in the environment say where it runs."""

from __future__ import annotations

import os

SECRET_KEY = os.environ.get("SECRET_KEY", "an example has no secrets")
ROOT_URLCONF = "examples.django.urls"
USE_TZ = True
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "testserver"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = [
    "pulse.contrib.django",  # before the admin, whose first page it extends by a link
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "examples.django.shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
STATIC_URL = "static/"

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ.get("DATABASE_NAME", "shop"),
        "HOST": os.environ.get("DATABASE_HOST", ""),
        "PORT": os.environ.get("DATABASE_PORT", ""),
        "USER": os.environ.get("DATABASE_USER", ""),
        "PASSWORD": os.environ.get("DATABASE_PASSWORD", ""),
    }
}

PULSE: dict[str, object] = {"DASHBOARD_URL": "http://127.0.0.1:8470/"}
if "SHOP_SERVER" in os.environ:
    PULSE["CONNECT"] = os.environ["SHOP_SERVER"]  # unix:///run/pulse/pulse.sock or tls://jobs.example.com:8471
