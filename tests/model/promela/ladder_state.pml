/* What there is in ladder.pml, what must hold of it, and the guards. */

#define LEASE 3
#define MAX_ATTEMPTS 9
#include "row.pml"

#ifndef ONE_HOST
#define ONE_HOST false
#endif
#define CLAIMS 3
#define STOPS 1
#ifdef IN_A_CHILD
#define TROUBLES 0
#else
#define TROUBLES 1
#endif
#define A1 1
#define A2 2
#define B1 3

hidden byte one_attempt_runs_on_a_host = 1, hosts_overlap_only_after_a_lapse = 2, a_silent_worker_keeps_its_lease = 3,
    only_lapsed_leases_are_reaped = 4;

mtype = { ALIVE, STOPPED, DYING, DEAD };
mtype = { NOTHING, ASKED, TERMED, KILLED };
mtype process = ALIVE;          /* A1's */
byte queued, running;           /* the attempts that A1 has: not started; its handler runs, or is stopped */
bool up = true;                 /* host A's dispatcher */
bool linked = true;             /* host A reaches the database */
bool here;                      /* A1 is connected to it */
byte started;                   /* the last attempt that A1 named as started */
bool watched;                   /* by the dispatcher: ProcessWatch.watch, ProcessWatch.adopt */
byte unheard;                   /* ticks since it heard of A1, or began to watch it: at LEASE the ladder begins */
byte unbeaten = LEASE;          /* ticks since it wrote a beat of A1; LEASE: or never */
mtype rung = NOTHING;           /* of the ladder: what it did to A1 */
bool has_beaten, has_looked;    /* A1, the dispatcher, in this tick */
byte claims, troubles, stops;
bool unkept;                    /* A1's lease lapsed while no dispatcher could renew it */
bool lost;                      /* what A1 has lapsed, and was ended by a host that cannot see it */
bool forgotten;                 /* and the dispatcher that handed it out is gone */

#define A1_HOLDS_ROW (status == RUNNING && locked_by == A1)
#define A1_HAS_ANY (queued != 0 || running != 0)
#define A1_HAS(attempt) (queued == (attempt) || running == (attempt))

/* Guards, each with what is left of it in a broken variant. */
#ifdef OTHER_USER
#define IN_HAND false
#else
#define IN_HAND (process != DEAD)         /* identity.is_in_hand: it lives, and may be signalled */
#endif
#if defined(RENEWAL_AFTER_LAPSE)
#define MUST_HOLD (unbeaten >= LEASE)
#elif defined(HOLDS_BY_SILENCE)
#define MUST_HOLD (unheard >= LEASE - 1)
#else
#define MUST_HOLD (unbeaten >= LEASE - 1) /* silent_workers.judge: renewed before it lapses, whoever extended it last */
#endif
#ifdef REAPS_THE_LIVING
#define SPARED false
#else
#define SPARED (on_a && locked_by == A1 && IN_HAND)
#endif
#ifdef REAP_WITHOUT_LOOKING_AGAIN
#define STILL_LAPSED true
#else
#define STILL_LAPSED (lease == 0)         /* end_attempts, for the outcome lease_expired */
#endif
#ifdef HANDS_OUT_BLINDLY
#define MAY_HAND_OUT true
#else
#define MAY_HAND_OUT (!watched || (queued == 0 && running == 0)) /* nobody who is watched holds an attempt of it */
#endif
#ifdef OTHER_USER
#define EXCUSED lost                      /* by leases alone, as across hosts */
#else
#define EXCUSED (lost && forgotten)       /* another host ended it while no dispatcher here kept it in mind */
#endif

/* In A1's name: extend_leases. */
inline keep() {
    extend_leases();
    unkept = false
}

/* What A1 had is gone: a result was answered, or the process is. */
inline forget() {
    queued = 0;
    running = 0;
    lost = false;
    forgotten = false
}

inline die() {
    process = DEAD;
    here = false;
    queued = 0;
#ifndef IN_A_CHILD
    forget()
#endif
}
