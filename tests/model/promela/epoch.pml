/*
 * The database goes back: to a backup, or to what a standby had when it took over. Two hosts, one job.
 *
 * It goes back RESTORES times, to how it was at any moment before, also the same twice. CUTS times a host is cut off
 * from it, so that others stop waiting for it; it may come back. RESTARTS times a dispatcher is started anew, and knows
 * what the file in its state directory says. IN_PLACE: the restore goes into the running server, and no connection ends.
 * JOINS: the second host comes in the time that is lost. What is as in reconnect.pml is left out: claims and reports are
 * one step each, but reports may come again, later. One that comes again and changes nothing is no step.
 */

#include "epoch_state.pml"

/* Runs of this host that are no more what they were: told `lost`; what they come to is not written. */
inline lose(me) {
    run_of[1].at = (run_of[1].host == me && run_of[1].at == IN_HAND -> LOST : run_of[1].at);
    run_of[2].at = (run_of[2].host == me && run_of[2].at == IN_HAND -> LOST : run_of[2].at);
    run_of[3].at = (run_of[3].host == me && run_of[3].at == IN_HAND -> LOST : run_of[3].at)
}

/* A new epoch, above all that this host and the database know. */
inline raise(me) {
    MUST(no_epoch_without_cause, has_cause[me]);
    epoch = GREATER(epoch, host[me].epoch) + 1;
    floor = STEP * (1 + GREATER(GREATER(floor, host[me].highest), GREATER(witness[1].highest, witness[2].highest)) / STEP)
}

/* The RUNNING row of this host that no worker of it has in hand. */
inline give_back_unheld(me) {
    if
    :: status == RUNNING && locked_by == me && !ROW_IS_HELD(me) -> end_released()
    :: else
    fi
}

inline remember(me) {
    host[me].counter = witness[me].counter;
    host[me].pair = (ANY_COUNTS(me) -> host[me].pair : 0);
    host[me].knows_other = (host[me].knows_other || witness[OTHER_THAN(me)].there)
}

proctype Host(byte me) {
end:
    do
    :: atomic { /* a look: before a new connection is used, and where a statement with the guard came back empty */
           host[me].linked && (host[me].looked != incarnation || !(MAY_TICK(me) && MAY_CLAIM(me)) && epoch <= host[me].epoch) ->
           is_silent[me] = false;
           if
           :: KNOWS_LESS(me) -> host[me].looked = incarnation; raise(me)
           :: !KNOWS_LESS(me) && epoch == host[me].epoch -> host[me].comes_to = incarnation
           :: else -> host[me].looked = incarnation /* another host has raised it */
           fi
       }
    :: atomic { /* accept_epoch, in a statement of its own: the place may be another one by then */
           host[me].linked && host[me].comes_to != UNSEEN ->
           if
           :: COMES_TO_WHAT_IT_SAW(me) && epoch == host[me].epoch ->
               witness[me].there = true;
               witness[me].counter = GREATER(witness[me].counter, host[me].counter);
               witness[me].looked = host[me].comes_to;
               host[me].looked = host[me].comes_to;
               has_cause[me] = false;
#ifndef LOOKS_AT_PAIRS_ONLY
               give_back_unheld(me)
#endif
           :: else
           fi;
           host[me].comes_to = UNSEEN
       }
    :: atomic { /* EpochStore.begin: its rows are free, but what it has in hand yet is kept from others */
           host[me].linked && host[me].looked == incarnation && epoch > host[me].epoch ->
           lose(me);
           witness[me].there = true;
           witness[me].counter = GREATER(witness[me].counter, host[me].counter);
           witness[me].highest = GREATER(witness[me].highest, host[me].highest);
           witness[me].epoch = epoch;
           witness[me].looked = incarnation;
           host[me].epoch = epoch;
           remember(me);
           has_cause[me] = false;
#ifndef ROWS_STAY_RUNNING
           if
           :: status == RUNNING && locked_by == me -> end_released()
           :: else
           fi;
#endif
#ifndef NOTHING_IS_PUT_OFF
           witness[me].puts_off = ANY_IN_HAND(me)
#endif
       }
    :: atomic { /* once a second: what is confirmed is remembered */
           host[me].linked && host[me].looked == incarnation && epoch == host[me].epoch && host[me].ticks < TICKS ->
           host[me].ticks++;
           if
           :: MAY_TICK(me) ->
               witness[me].counter++;
               witness[me].highest = GREATER(witness[me].highest, host[me].highest);
               remember(me)
           :: MAY_TICK(me) -> witness[me].counter++ /* the answer is lost */
#ifdef REMEMBERED_BEFORE_COMMIT
           :: MAY_TICK(me) -> host[me].counter++ /* the statement is */
#endif
           :: else
           fi
       }
    :: atomic { /* claim_jobs */
           host[me].linked && host[me].looked == incarnation && there && CLAIMABLE && runs < CLAIMS &&
               MAY_CLAIM(me) && IS_OPEN_TO(me) && IS_DUE(me) && MAY_HAND_OUT(me) && IS_SEEN(me) && IS_CALLED(me) ->
           runs++;
           if
           :: FLOOR_FOR_ROW > attempts ->
#ifndef JUMP_IS_CHARGED
               uncharged = uncharged + FLOOR_FOR_ROW - attempts;
#endif
               attempts = FLOOR_FOR_ROW
           :: else
           fi;
           claim_jobs(me);
           tenure = runs;
           run_of[runs].token = attempts;
           host[me].pair = GREATER(host[me].pair, attempts);
           host[me].highest = GREATER(host[me].highest, attempts);
           MUST(no_pair_is_handed_out_twice, !WAS_HANDED_OUT(me, attempts) &&
               (!WAS_HANDED_OUT(OTHER_THAN(me), attempts) || is_silent[OTHER_THAN(me)]));
           MUST(one_attempt_runs_on_a_host, !ANY_IN_HAND(me));
           MUST(hosts_overlap_only_after_a_cut, !ANY_IN_HAND(OTHER_THAN(me)) || was_cut[OTHER_THAN(me)]);
           run_of[runs].at = IN_HAND;
           run_of[runs].host = me;
           handed_out[me] = handed_out[me] | 1 << attempts
       }
    od
}

inline report(a) {
    if
    :: FENCED(run_of[a].host, run_of[a].token) ->
        MUST(a_report_closes_its_own_run, tenure == a);
        charged++;
        complete_jobs()
    :: else
    fi
}

inline forget_run(a) {
    run_of[a].at = 0;
    run_of[a].host = 0;
    run_of[a].token = 0
}

/* One attempt at its worker: it ends, its report is written, and perhaps again, by a connection that hung. */
proctype Attempt(byte a) {
end:
    do
    :: atomic {
           run_of[a].at == LOST || (run_of[a].at == IN_HAND && host[run_of[a].host].linked) ->
           if
           :: run_of[a].at == IN_HAND -> report(a)
           :: else
           fi;
           run_of[a].at = HOME;
           was_cut[run_of[a].host] = was_cut[run_of[a].host] && ANY_IN_HAND(run_of[a].host);
           if
           :: skip
           :: forget_run(a) /* it does not come again */
           fi
       }
    :: atomic {
           run_of[a].at == HOME && host[run_of[a].host].linked && FENCED(run_of[a].host, run_of[a].token) ->
           report(a);
           forget_run(a)
       }
    od
}

/* Leases of hosts that are cut off. */
active proctype Watchdog() {
end:
    do
    :: atomic { status == RUNNING && !host[locked_by].linked -> charged++; end_charged() }
    od
}

/* Somebody wants the job done, and submits it again where it has gone. */
active proctype Client() {
end:
    do
    :: atomic { !there -> there = true; is_fresh = true; status = PENDING }
    od
}

inline break_connection(me) {
    host[me].looked = UNSEEN;
    has_cause[me] = true
}

active proctype Fate() {
    byte one;
    atomic {
        witness[1].there = true; witness[1].epoch = 1; host[1].linked = true; host[1].epoch = 1;
        host[2].linked = true;
        host[1].comes_to = UNSEEN; host[2].comes_to = UNSEEN;
#ifndef JOINS
        witness[2].there = true; witness[2].epoch = 1; host[2].epoch = 1;
        host[1].knows_other = true; host[2].knows_other = true;
#endif
        run Host(1);
        run Host(2);
        run Attempt(1);
        run Attempt(2);
        run Attempt(3)
    }
end:
    do
    :: atomic { !backup.made || restores < RESTORES -> make_backup() }
    :: atomic {
           backup.made && restores < RESTORES && MAY_RESTORE ->
           restores++;
           go_back();
           if
           :: restores == RESTORES -> forget_backup()
           :: else
           fi;
#ifdef IN_PLACE
           has_cause[1] = true;
           has_cause[2] = true
#else
           incarnation++;
           break_connection(1);
           break_connection(2)
#endif
       }
    :: atomic {
           cuts < CUTS ->
           cuts++;
           select(one : 1 .. 2);
           host[one].linked = false;
           if
           :: comes_back[one] = true
           :: comes_back[one] = false
           fi;
           is_silent[one] = true;
           was_cut[one] = ANY_IN_HAND(one);
           one = 0
       }
    :: atomic { !host[1].linked && comes_back[1] -> host[1].linked = true; host[1].looked = UNSEEN }
    :: atomic { !host[2].linked && comes_back[2] -> host[2].linked = true; host[2].looked = UNSEEN }
    :: atomic {
           restarts < RESTARTS ->
           restarts++;
           select(one : 1 .. 2);
           host[one].pair = (ANY_COUNTS(one) -> host[one].pair : 0);
           host[one].looked = UNSEEN;
           one = 0
       }
    od
}

/* When nothing moves any more. */
active proctype Audit() {
end:
    do
    :: atomic { BUDGET_IS_KNOWN && attempts - uncharged != charged -> MUST(a_lost_attempt_is_not_charged, false) }
    :: atomic {
           timeout ->
           MUST(no_attempt_waits_for_its_lease, status != RUNNING || !host[locked_by].linked);
           MUST(every_job_ends, status == COMPLETED || runs == CLAIMS);
           break
       }
    od
}
