/*
 * Kill, then requeue: what becomes of the attempt of a worker that lives and says nothing, on one of two hosts.
 *
 * One job. Host A has a dispatcher, a watchdog and the worker A1, which may be stopped by a signal, die, and come back.
 * Its other worker A2, and B1 on host B, are there to be handed the job too early; they behave. Host B's watchdog sees
 * nothing of host A but leases. Time goes in ticks, one heartbeat each; a lease lasts three. A tick waits for what is
 * done in every tick, beats and the dispatcher's look, and for what takes milliseconds: the proof of a death.
 *
 * OTHER_USER: A1 belongs to a user whose processes may not be signalled, so it lives by its lease.
 * ONE_HOST: there is no host B.
 * IN_A_CHILD: its handlers run in a child process, which outlives it; then the dispatcher is not restarted.
 */

#include "ladder_state.pml"

active proctype Time() {
end:
    do
    :: atomic {
           !(up && !has_looked) && !(up && here && process == ALIVE && !has_beaten) &&
               !(up && linked && process == DEAD && A1_HOLDS_ROW) ->
           has_beaten = false;
           has_looked = false;
           if
           :: A1_HOLDS_ROW && lease > 0 -> lease--; unkept = (unkept || (lease == 0 && !(up && linked)))
           :: else
           fi;
           if
           :: up && unheard < LEASE -> unheard++
           :: else
           fi;
           if
           :: up && unbeaten < LEASE -> unbeaten++
           :: else
           fi
       }
    od
}

/* Handout.fetch: for workers that are connected and not silent. */
active proctype DispatcherA() {
end:
    do
    :: atomic {
           up && linked && here && !A1_HAS_ANY && unheard < LEASE && rung == NOTHING && CLAIMABLE && claims < CLAIMS ->
           claims++;
           claim_jobs(A1);
           queued = attempts;
           unkept = false
       }
    :: atomic {
           up && linked && MAY_HAND_OUT && CLAIMABLE && claims < CLAIMS ->
           claims++;
           claim_jobs(A2);
           MUST(one_attempt_runs_on_a_host, running == 0 || EXCUSED)
       }
    od
}

active proctype DispatcherB() {
end:
    do
    :: atomic {
           !ONE_HOST && CLAIMABLE && claims < CLAIMS ->
           claims++;
           claim_jobs(B1);
           MUST(hosts_overlap_only_after_a_lapse, running == 0 || lost)
       }
    od
}

/* Those who behave beat in time and come to an end. */
active proctype OtherWorkers() {
end:
    do
    :: atomic { status == RUNNING && locked_by != A1 -> end_charged() }
    od
}

/* SilentWorkers._look: the dispatcher of host A keeps the leases of its living workers, whether they are connected or not. */
active proctype Renewal() {
end:
    do
    :: atomic {
           up && !has_looked ->
           has_looked = true;
           if
#ifndef NO_RENEWAL
           :: linked && A1_HOLDS_ROW && IN_HAND && watched && MUST_HOLD -> keep()
#endif
           :: else
           fi
       }
    od
}

/* SilentWorkers._kill: each rung has its bound, but none is left out. */
active proctype Ladder() {
end:
    do
    :: atomic { up && rung == NOTHING && IN_HAND && watched && A1_HOLDS_ROW && unheard == LEASE -> rung = ASKED }
#ifdef RELEASE_BEFORE_DEATH
    :: atomic { up && linked && rung == ASKED && A1_HOLDS_ROW && queued == attempts -> end_released() }
#endif
    :: atomic { up && rung == ASKED -> rung = TERMED }
#ifndef NEVER_KILLS
    :: atomic {
           up && rung == TERMED ->
           rung = KILLED;
           if
           :: process != DEAD -> process = DYING
           :: else
           fi
       }
#endif
#ifdef REAP_BEFORE_DEATH
    :: atomic { up && linked && rung == KILLED && A1_HOLDS_ROW -> end_charged() }
#endif
    od
}

/* Deaths, bury_forgotten: what a dead process held is ended at once, after its process group was killed. */
active proctype Undertaker() {
end:
    do
    :: atomic {
           up && linked && process == DEAD && (A1_HOLDS_ROW || running != 0) ->
           watched = false;
#ifndef GROUP_LIVES_ON
           forget();
#endif
           if
           :: A1_HOLDS_ROW && started != attempts -> end_released()
           :: A1_HOLDS_ROW && started == attempts && rung == KILLED -> end_charged() /* `silent`: looks at no lease */
           :: A1_HOLDS_ROW && started == attempts && rung != KILLED -> end_crashed()
           :: else
           fi
       }
    od
}

/* A watchdog reads what has lapsed, and ends it if it still has. It spares the living of its own host. */
proctype Watchdog(bool on_a) {
    byte worker, attempt;
end:
    do
    :: atomic { LAPSED && !SPARED && (linked || !on_a) -> worker = locked_by; attempt = attempts };
       atomic {
           if
           :: FENCED(worker, attempt) && STILL_LAPSED && (linked || !on_a) ->
               MUST(only_lapsed_leases_are_reaped, lease == 0);
               MUST(a_silent_worker_keeps_its_lease, !IN_HAND || unkept);
               lost = (A1_HAS(attempt) && !(on_a && IN_HAND));
               end_charged()
           :: else
           fi;
           worker = 0; attempt = 0
       }
    od
}

/* A1's own part: it beats, ... */
active proctype Beats() {
end:
    do
    :: atomic {
           process == ALIVE && up && here && !has_beaten ->
           has_beaten = true;
           unheard = 0;
           unbeaten = (linked -> 0 : unbeaten);
           rung = NOTHING;
           if
           :: linked && A1_HOLDS_ROW && A1_HAS(attempts) -> keep()
           :: else
           fi
       }
    od
}

/* ... starts what it was assigned, once it has named it, ... */
active proctype Starts() {
end:
    do
    :: atomic {
           process == ALIVE && up && here && queued != 0 ->
           running = queued;
           started = queued;
           queued = 0;
           MUST(one_attempt_runs_on_a_host, status != RUNNING || locked_by != A2 || EXCUSED);
           MUST(hosts_overlap_only_after_a_lapse, status != RUNNING || locked_by != B1 || lost)
       }
    od
}

/* ... and says hello to a dispatcher that is new. */
active proctype Hello() {
end:
    do
    :: atomic {
           process == ALIVE && up && linked && !here ->
           here = true;
           watched = true;
           unheard = 0;
           unbeaten = LEASE;
           rung = NOTHING;
           if
           :: queued == 0 || FENCED(A1, queued)
           :: else -> forget() /* `lost`, in the welcome: it is not started */
           fi
       }
    od
}

/* The handler ends, and its report is written through the fence. */
active proctype Handler() {
end:
    do
    :: atomic {
           process == ALIVE && up && linked && here && running != 0 ->
           if
           :: FENCED(A1, running) -> complete_jobs()
           :: else
           fi;
           forget()
       }
    od
}

/* What happens to A1 and to the dispatcher. */
active proctype Fate() {
    run Watchdog(true);
    if
    :: !ONE_HOST -> run Watchdog(false)
    :: else
    fi;
end:
    do
    :: atomic { process == ALIVE && stops < STOPS -> stops++; process = STOPPED }
    :: atomic { process == STOPPED -> process = ALIVE }
    :: process == STOPPED /* for ever, perhaps */
    :: atomic { process == ALIVE -> die() }
    :: atomic {
           up && troubles < TROUBLES ->
           troubles++;
           up = false;
           here = false;
           watched = false;
           forgotten = A1_HAS_ANY
       }
    :: atomic { linked && troubles < TROUBLES -> troubles++; linked = false }
    od
}

active proctype Kernel() {
end:
    do
    :: atomic { process == DYING -> die() }
    od
}

/* The successor knows what the database knows: a living worker that holds a job is watched at once, ProcessWatch.adopt. */
active proctype Supervisor() {
end:
    do
    :: atomic { !linked -> linked = true; has_looked = false /* ten looks in a lease */ }
    :: atomic {
           !up && linked ->
           up = true;
           has_looked = false;
           unheard = 0;
           unbeaten = LEASE;
           rung = NOTHING;
           if
#ifndef STRANGERS_ARE_FORGOTTEN
           :: A1_HOLDS_ROW && IN_HAND -> watched = true
#endif
           :: else
           fi
       }
    od
}

#ifdef LIVENESS
ltl every_attempt_ends { [] ((status == RUNNING) -> <> (status != RUNNING)) }
#endif
