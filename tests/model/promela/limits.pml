/*
 * Limits and sequences: no more jobs run than the limit allows, however old the snapshot of a claim is.
 *
 * Jobs of one topic. A claim is one statement: it opens pulse.limits, takes its snapshot, locks the row of the limit, counts
 * by its snapshot, takes jobs as they are now, and commits; anything may happen between these. Jobs end at any time. An
 * operator sets the limit while claims that do not know it are under way, lowers it, removes it and sets it again.
 */

#include "row.pml"

#ifndef JOBS
#define JOBS 3
#endif
#ifndef CLAIMS
#define CLAIMS 2
#endif
#ifndef CHANGES
#define CHANGES 2
#endif
#ifdef SEQUENCE
#define MOST 1
#else
#define MOST 2
#endif

hidden byte no_more_run_than_the_limit = 1, what_runs_is_counted = 2, a_sequence_is_in_order = 3;

byte has_run[JOBS];               /* 0: it waits, 1: it runs, 2: it has ended */
bool counted[JOBS], held[JOBS];   /* counted_by; locked by a claim that has not committed */
bool is_set, is_locked, is_closed; /* there is a limit; its row, the table is locked */
byte most, number;                /* its concurrency, its claims */
byte under_way;                   /* statements that have pulse.limits open */
byte begun, changes;

inline count_running(total) {
    total = 0;
    each = 0;
    do
    :: each < JOBS -> total = total + (has_run[each] == 1 -> 1 : 0); each++
    :: else -> break
    od;
    each = 0
}

/* At each commit. */
inline check_counted() {
    each = 0;
    do
    :: each < JOBS -> MUST(what_runs_is_counted, !is_set || has_run[each] != 1 || counted[each]); each++
    :: else -> break
    od;
    each = 0
}

/* The head of a sequence is the first that waits, and no other takes its place. */
inline check_order(job) {
    each = 0;
    do
    :: each < job -> MUST(a_sequence_is_in_order, has_run[each] == 2); each++
    :: else -> break
    od;
    each = 0
}

/* claim_jobs where the snapshot knows no limit, else claim_limited: for one job, or for two. */
active [2] proctype Claim() {
    byte saw_number, slots, running, each, head;
    bool saw_limit, has_first, has_second;
    byte first, second;

end:
    do
    :: atomic {
           begun < CLAIMS && !is_closed -> begun++; under_way++; /* the tables are opened first */
           saw_limit = is_set; saw_number = number;
           count_running(running);
           head = JOBS; each = JOBS;
           do /* by the snapshot */
           :: each > 0 -> each--; head = (has_run[each] == 0 -> each : head)
           :: else -> break
           od
       }
       slots = 2;
       if
       :: saw_limit ->
          if
#ifdef ROW_IS_NOT_LOCKED
          :: atomic { slots = (saw_number == number && is_set && running < most -> most - running : 0) }
#else
          :: atomic { is_set && !is_locked -> is_locked = true }; /* FOR UPDATE: the newest row */
             atomic {
#ifdef CLAIMS_ARE_NOT_COMPARED
                 slots = (running < most -> most - running : 0)
#else
                 slots = (saw_number == number && running < most -> most - running : 0) /* else busy */
#endif
             }
          :: atomic { is_locked || !is_set -> slots = 0; saw_limit = false } /* SKIP LOCKED: busy */
#endif
          fi
       :: else
       fi;
#ifdef SEQUENCE_WITHOUT_SLOT
       atomic { slots = 1 };
#endif
       atomic { /* as the rows are now, and no other claim has locked them */
           first = 0;
           do
#if defined(SEQUENCE) && !defined(HEAD_IS_SKIPPED)
           :: slots > 0 && head < JOBS && has_run[head] == 0 && !held[head] -> first = head; has_first = true; held[first] = true; break
#else
           :: slots > 0 && first < JOBS && has_run[first] == 0 && !held[first] -> has_first = true; held[first] = true; break
           :: slots > 0 && first + 1 < JOBS -> first++
#endif
           :: else -> break
           :: break
           od
       };
#ifndef SEQUENCE
       atomic {
           second = 0;
           do
           :: has_first && slots > 1 && second < JOBS && has_run[second] == 0 && !held[second] -> has_second = true; held[second] = true; break
           :: second + 1 < JOBS -> second++
           :: break
           od
       };
#endif
       atomic { /* COMMIT */
           if
           :: has_first -> has_run[first] = 1; counted[first] = saw_limit; held[first] = false
           :: else
           fi;
#ifdef SEQUENCE
           if
           :: has_first && saw_limit -> check_order(first)
           :: else
           fi;
#else
           if
           :: has_second -> has_run[second] = 1; counted[second] = saw_limit; held[second] = false
           :: else
           fi;
#endif
           if
           :: saw_limit && has_first -> number++; count_running(running); MUST(no_more_run_than_the_limit, running <= most)
           :: else
           fi;
#ifndef ROW_IS_NOT_LOCKED
           if
           :: saw_limit -> is_locked = false
           :: else
           fi;
#endif
           check_counted();
           under_way--; has_first = false; has_second = false; running = 0; slots = 0; saw_number = 0; saw_limit = false;
           head = 0; first = 0; second = 0
       }
    od
}

/* complete_jobs, end_attempts and all others: they know of no limit. */
#define ENDS(job) \
    :: atomic { has_run[job] == 1 -> has_run[job] = 2 } \
    :: atomic { has_run[job] == 1 -> has_run[job] = 0 } /* it is tried again, in its place */

active proctype End() {
end:
    do
    ENDS(0)
    ENDS(1)
    ENDS(2)
    od
}

/* set_limit and unset_limit. */
active proctype Operator() {
    byte each;
end:
    do
    :: atomic { !is_set && changes < CHANGES -> changes++ };
#ifndef TABLE_IS_NOT_LOCKED
       atomic { is_closed = true }; /* await_claims */
       under_way == 0;
#endif
       atomic { /* count_slots, and the commit */
           is_set = true; most = MOST; number = 0;
           do
           :: each < JOBS -> counted[each] = counted[each] || has_run[each] == 1; each++
           :: else -> break
           od;
           check_counted();
           is_closed = false
       }
    :: atomic { is_set && !is_locked && most > 1 && changes < CHANGES -> changes++; most--; number++ }
    :: atomic { is_set && !is_locked && changes < CHANGES -> changes++; is_set = false }
    od
}
