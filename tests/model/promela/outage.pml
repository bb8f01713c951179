/*
 * No mass reaping: after the database, or every watchdog, was away, a worker that lives and beats keeps its attempt.
 *
 * One job, RUNNING on a worker that no watchdog can see: only its lease tells. Two watchdogs on two hosts, one of which
 * may be frozen, the other killed and started again. The database is away OUTAGES times, for any time; the jobs are locked
 * LOCKS times, against who writes; its clock is set forward STEPS times, by any amount. Ticks are half a heartbeat, 5 s with the default settings: beats and sweeps come
 * every 2. A tick waits for those that are due; within a tick they come in any order.
 */

#define LEASE 7 /* a lease lasts 6 ticks, and has lapsed after them */
#include "row.pml"

#define BEAT 2
#ifndef SWEEP
#define SWEEP 2
#endif
#ifndef GAP
#define GAP 3   /* SweepGuard.gap_s: longer than that between two sweeps is a doubt */
#endif
#ifndef STEP
#define STEP 1  /* SweepGuard.step_s: what the database's clock may seem to move by itself */
#endif
#ifndef OUTAGES
#define OUTAGES 1
#endif
#ifndef LOCKS
#define LOCKS 0
#endif
#ifndef STEPS
#define STEPS 0
#endif
#ifndef WATCHDOGS
#define WATCHDOGS 2
#endif
#ifndef RESTARTS
#define RESTARTS 1
#endif
#define FREEZES 1

hidden byte a_beating_worker_is_not_reaped = 1;

bool there = true;      /* the database */
bool writable = true;   /* nobody holds a lock on pulse.jobs that keeps heartbeats out */
bool lives = true;      /* the worker */
byte unbeaten;          /* ticks since the worker last tried to beat */
byte mark_age = GAP;    /* pulse.sweep_mark, by the database's clock; GAP + 1: older */
byte mark_wait;         /* beside it: until leases are trusted again, by anybody */
typedef Memory {        /* SweepGuard, and when it is called */
    bool runs;
    bool is_fresh;      /* has not looked at the clock yet */
    byte unswept;       /* ticks since it last tried to sweep */
    byte step;          /* how far the database's clock was set since */
    byte wait;          /* until it trusts leases again */
    bool lapsed         /* the lease had lapsed when it began to sweep, and has not been extended since */
}
Memory watchdog[3];
byte outages, locks, steps, freezes, restarts;

#define LATER(age, by) age = (age + (by) > GAP + 1 -> GAP + 1 : age + (by))
#define LESS(time, by) time = ((time) > (by) -> time - (by) : 0)
#define DUE(w) (watchdog[w].runs && watchdog[w].unswept == SWEEP)

#ifdef NO_GUARD
#define LONG_GAP false
#else
#define LONG_GAP (mark_age > GAP)
#endif
#ifdef CLOCK_IS_TRUSTED
#define STEPPED(w) false
#else
#define STEPPED(w) (!watchdog[w].is_fresh && watchdog[w].step > STEP)
#endif
#ifdef MARKS_UNDER_A_LOCK
#define MARKABLE there
#else
#define MARKABLE (there && writable) /* mark_sweep takes the lock of a heartbeat */
#endif
#ifdef REAPS_AS_OF_NOW
#define HAD_LAPSED(w) LAPSED
#else
#define HAD_LAPSED(w) watchdog[w].lapsed
#endif
#ifdef WAIT_IN_MEMORY
#define MUST_WAIT(w) (watchdog[w].wait > 0)
#else
#define MUST_WAIT(w) (watchdog[w].wait > 0 || mark_wait > 0)
#endif
#ifdef WAITS_ONE_SWEEP
#define WAIT 1
#else
#define WAIT LEASE
#endif

active proctype Time() {
    d_step {
        status = RUNNING;
        attempts = 1;
        locked_by = 1;
        lease = LEASE;
        watchdog[1].runs = true;
        watchdog[1].is_fresh = true;
        watchdog[2].runs = (WATCHDOGS == 2);
        watchdog[2].is_fresh = true
    }
end:
    do
    :: atomic {
           !(lives && unbeaten == BEAT) && !DUE(1) && !DUE(2) ->
           d_step {
               LESS(lease, 1);
               unbeaten = (lives -> unbeaten + 1 : 0);
               LATER(mark_age, 1);
               LESS(mark_wait, 1);
               watchdog[1].unswept = (watchdog[1].unswept < SWEEP -> watchdog[1].unswept + 1 : SWEEP);
               watchdog[2].unswept = (watchdog[2].unswept < SWEEP -> watchdog[2].unswept + 1 : SWEEP);
               LESS(watchdog[1].wait, 1);
               LESS(watchdog[2].wait, 1)
           }
       }
    od
}

/* HeartbeatWriter._beat: what the database does not take is not repeated before the next heartbeat. */
active proctype Worker() {
end:
    do
    :: atomic {
           lives && unbeaten == BEAT ->
           unbeaten = 0;
           if
           :: there && writable && status == RUNNING ->
               extend_leases();
               watchdog[1].lapsed = false;
               watchdog[2].lapsed = false
           :: else
           fi
       }
    od
}

/* Watchdog.turn: note the sweep, and reap where nothing speaks against it. */
proctype Watchdog(byte me) {
    bool may_reap;
end:
    do
    :: atomic { watchdog[me].runs && watchdog[me].unswept == SWEEP && !MARKABLE -> watchdog[me].unswept = 0 }
    :: atomic {
           watchdog[me].runs && watchdog[me].unswept == SWEEP && MARKABLE ->
           watchdog[me].unswept = 0;
           if
           :: LONG_GAP -> mark_wait = WAIT; watchdog[me].wait = WAIT
           :: !LONG_GAP && STEPPED(me) -> watchdog[me].wait = WAIT
           :: else
           fi;
           mark_age = 0;
           watchdog[me].is_fresh = false;
           watchdog[me].step = 0;
           may_reap = !MUST_WAIT(me);
           watchdog[me].lapsed = (LAPSED && may_reap)
       };
       atomic { /* it may have been frozen in between; what it ends had lapsed by the time of its mark */
           if
           :: may_reap && there && writable && HAD_LAPSED(me) && LAPSED ->
               MUST(a_beating_worker_is_not_reaped, !lives);
               end_charged()
           :: else
           fi;
           may_reap = false;
           watchdog[me].lapsed = false
       }
    od
}

/* What may happen, each a few times. */
active proctype Fate() {
    byte by;
    run Watchdog(1);
    run Watchdog(2);
end:
    do
    :: atomic { there && outages < OUTAGES -> outages++; there = false }
    :: atomic { writable && locks < LOCKS -> locks++; writable = false }
    :: atomic {
           there && steps < STEPS ->
           steps++;
           if
           :: by = 1
           :: by = 2
           :: by = GAP
           :: by = LEASE
           fi;
           LESS(lease, by);
           LATER(mark_age, by);
           LESS(mark_wait, by);
           LATER(watchdog[1].step, by);
           LATER(watchdog[2].step, by);
           by = 0
       }
    :: atomic { freezes < FREEZES -> freezes++; watchdog[1].runs = false }
    :: atomic {
           restarts < RESTARTS ->
           restarts++;
           by = WATCHDOGS; /* the last one is started anew */
           watchdog[by].is_fresh = true;
           watchdog[by].step = 0;
           watchdog[by].wait = 0;
           watchdog[by].unswept = SWEEP; /* prime comes at once */
           by = 0
       }
    :: atomic { lives -> lives = false; unbeaten = 0 }
    :: !there || !writable /* nothing, perhaps */
    od
}

/* What was away comes back. */
active proctype Return() {
end:
    do
    :: atomic { !there -> there = true }
    :: atomic { !writable -> writable = true }
    :: atomic { !watchdog[1].runs && freezes > 0 -> watchdog[1].runs = true }
    od
}

#ifdef LIVENESS
ltl a_dead_worker_is_reaped { [] (!lives -> <> (status != RUNNING)) }
#endif
