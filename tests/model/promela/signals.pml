/*
 * Signals: a handler that waits for one gives its attempt back, and whoever sends one commits in that very moment.
 *
 * One job, whose handler waits twice for signals of one name. Senders commit at any time, each in one step, since what
 * they do there waits for the row's lock. Attempts end, die or lapse at any time; one that has lapsed runs on, so two may
 * run at once. The time of a wait may be over at any time, or never.
 */

#include "row.pml"

#define CLAIMS 4
#define SIGNALS 2
#define WAITS 2
#define OVER 9                    /* what a wait has got whose time was over */

hidden byte nobody_waits_beside_a_signal = 1, each_signal_goes_to_one_wait = 2, a_wait_keeps_what_it_got = 3,
    a_wait_has_its_time = 4;

bool is_due = true;
bool sent[SIGNALS + 1];           /* rows of pulse.signals that have committed; 0 is none */
byte signals, claims;
bool awaited;                     /* awaited_signal */
byte kept[WAITS];                 /* the checkpoint: what each wait has got; 0: it is not decided */
byte since[WAITS];                /* and which attempt ended with it */
bool time_over[WAITS];            /* the truth: its time was over before a signal woke the job */
byte asleep_in;                   /* the truth: the wait that the last attempt ended with, from 1 */
byte got[WAITS];                  /* the truth: what a handler went on with, while it held the job */

/* pulse.signal, and at its COMMIT pulse.deliver_signal: the count, and whether the job waits for it. */
active [SIGNALS] proctype Sender() {
    atomic {
        sent[_pid + 1] = true;
        signals++;
#ifndef SIGNAL_WAKES_NOBODY
        if
        :: CLAIMABLE && awaited -> awaited = false; is_due = true
        :: else
        fi
#endif
    }
}

/* The time that end_attempts gave to the wait. */
active proctype Clock() {
end:
    do
    :: atomic {
           CLAIMABLE && awaited && !is_due -> is_due = true;
           time_over[asleep_in - 1] = true
       }
    od
}

#define HOLDS FENCED(1, token)
#ifdef CHECKPOINTS_ARE_NOT_FENCED
#define MAY_KEEP true
#else
#define MAY_KEEP HOLDS
#endif

/* What its waits have, as save_checkpoints stores it, and the handler goes on. */
inline keep() {
    kept[0] = mine[0]; kept[1] = mine[1];
    since[0] = at[0]; since[1] = at[1]
}

/* A claim, and the handler up to its end; each turn of the inner loop is a wait. */
active [2] proctype Attempt() {
    byte token, number, seen, found, each;
    byte mine[WAITS], at[WAITS];
    bool is_over;

end:
    do
    :: atomic {
           CLAIMABLE && is_due && claims < CLAIMS -> claims++;
           claim_jobs(1);
           token = attempts; is_due = false;
           mine[0] = kept[0]; mine[1] = kept[1];
           at[0] = since[0]; at[1] = since[1]
       }
       do
       :: atomic { number == WAITS -> if :: HOLDS -> complete_jobs() :: else fi; break }
       :: atomic { number < WAITS && mine[number] != 0 -> /* decided by an attempt before */
              MUST(a_wait_keeps_what_it_got, !HOLDS || got[number] == 0 || got[number] == mine[number]);
              number++
          }
       :: number < WAITS && mine[number] == 0 ->
          atomic { /* next_signal: all of it in one snapshot */
              seen = signals; is_over = awaited;
              found = 0; each = SIGNALS;
              do
              :: each > 0 ->
#ifdef HAD_ARE_FORGOTTEN
                 found = (sent[each] -> each : found);
#else
                 found = (sent[each] && mine[0] != each && mine[1] != each -> each : found);
#endif
                 each--
              :: else -> break
              od
          }
#ifdef COUNT_IS_READ_LATER
          atomic { seen = signals };
#endif
          if
          :: atomic { found != 0 -> mine[number] = found }
#ifdef OVER_FOR_ALL
          :: atomic { found == 0 && is_over -> mine[number] = OVER }
          :: atomic { found == 0 && !is_over -> at[number] = token }
#else
          :: atomic { found == 0 && is_over && at[number] == token - 1 -> mine[number] = OVER }
          :: atomic { found == 0 && !(is_over && at[number] == token - 1) -> at[number] = token }
#endif
          fi;
          if
#ifdef DECISION_IS_NOT_KEPT
          :: atomic { mine[number] != 0 }
          :: atomic { mine[number] == 0 && MAY_KEEP -> keep() }
#else
          :: atomic { MAY_KEEP -> keep() } /* save_checkpoints, and its receipt */
#endif
          :: atomic { !MAY_KEEP -> break } /* the attempt is stale */
          :: atomic { /* it dies */ if :: HOLDS -> end_released(); awaited = false; is_due = true :: else fi; break }
          fi;
          if
          :: atomic { mine[number] != 0 -> /* the handler goes on */
                 if
                 :: HOLDS ->
                    MUST(each_signal_goes_to_one_wait, mine[number] == OVER || mine[0] != mine[1]);
                    MUST(a_wait_keeps_what_it_got, got[number] == 0 || got[number] == mine[number]);
                    MUST(a_wait_has_its_time, mine[number] != OVER || time_over[number]);
                    got[number] = mine[number]
                 :: else
                 fi;
                 number++
             }
          :: atomic { mine[number] == 0 -> /* end_attempts: it waits, unless more have come than it had seen */
                 if
                 :: HOLDS ->
                    end_released();
#ifdef COUNT_IS_NOT_COMPARED
                    is_due = false;
#else
                    is_due = signals > seen;
#endif
                    awaited = !is_due;
                    asleep_in = number + 1
                 :: else
                 fi;
                 break
             }
          fi
       od;
       atomic {
           token = 0; number = 0; seen = 0; found = 0; each = 0; is_over = false;
           mine[0] = 0; mine[1] = 0; at[0] = 0; at[1] = 0
       }
    od
}

/* Leases lapse; the attempt may run on. */
active proctype Watchdog() {
end:
    do
    :: atomic { status == RUNNING && claims < CLAIMS -> end_released(); awaited = false; is_due = true }
    od
}

#define IS_FREE(signal) (sent[signal] && kept[0] != signal && kept[1] != signal)

active proctype Audit() {
end:
    do
    :: atomic { CLAIMABLE && awaited && (IS_FREE(1) || IS_FREE(2)) -> MUST(nobody_waits_beside_a_signal, false) }
    od
}
