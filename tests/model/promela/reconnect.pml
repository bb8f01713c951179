/*
 * One host: claims, connections, deaths. Who has the job, whatever breaks between dispatcher, worker and database?
 *
 * One job, one worker process at a time, one dispatcher at a time. FAULTS of these happen, in any order: the
 * connection breaks, the worker starts anew in the same process, the worker dies, the dispatcher is killed, the answer
 * of a claim is lost, the database is away at a hello. A claim that nobody waits for any more may commit late. There is
 * no time: a living worker's leases do not lapse (that is ladder.pml), and only rows that came late under a process
 * that is dead by then are left to their leases.
 *
 * An operator cancels CANCELS times, and retries, here or (ELSEWHERE) through another host's dispatcher, which sees
 * nothing but the row. NO_KILLS: the dispatcher is not killed. NOTHING_IS_LATE: a claim without a dispatcher fails.
 *
 * reconnect_state.pml has what there is, and the guards; this file the dispatcher; reconnect_worker.pml the others.
 */

#include "reconnect_state.pml"

/* give_back_unlisted, its second step: the fence is tested again. */
inline give_back(a) {
    if
    :: FENCED(identity, a) ->
        MUST(what_is_held_is_not_given_back, at[a] == NONE && !TOLD(a));
        MUST(finished_work_counts, reporting[a] == NONE);
        end_released()
    :: else
    fi
}

/* ClaimLoop.pass_once: doubts first, then one claim, under the lock until its jobs are in the book. */
active proctype Claims() {
end:
    do
    :: atomic {
           up && lock == FREE && in_doubt ->
           in_doubt = false;
           seen = (joined && status == RUNNING && locked_by == identity -> attempts : 0);
           if
           :: seen != 0 && !IN_BOOK(seen) && !IS_REPORTING(seen) -> give_back(seen)
           :: else
           fi;
           seen = 0
       }
    :: atomic {
           up && lock == FREE && !in_doubt && joined && CLAIMABLE && claims < CLAIMS ->
           lock = CLAIMING;
           claim = SENDING;
           canceled[1] = false; canceled[2] = false; canceled[3] = false
       }
    :: atomic {
           up && lock == FREE && !in_doubt && CLAIMABLE && claims < CLAIMS - 1 && MAY_HAND_OUT ->
           claims++;
           claim_jobs(OTHER);
           owner[attempts] = OTHER;
           MUST(one_attempt_runs_at_a_time, !OTHERS_RUN(0));
           end_charged()
       }
    :: atomic {
           up && claim == ANSWERED ->
           if
           :: answer != 0 && !canceled[answer] && joined && MAY_HAND_OUT ->
               book[answer] = HELD;
               to_worker!ASSIGN, answer
           :: answer != 0 && !canceled[answer] && !(joined && MAY_HAND_OUT) && FENCED(identity, answer) ->
               end_released() /* unassigned */
           :: else
           fi;
           claim = NONE;
           answer = 0;
           lock = FREE
       }
    :: atomic { /* the answer is lost, or does not come in time */
           up && claim != NONE && faults < FAULTS ->
           faults++;
           late = (late || claim == SENDING);
           late_for = (claim == SENDING -> identity : late_for);
           claim = NONE;
           answer = 0;
           lock = LOCK_AFTER_FAILURE;
           in_doubt = true;
#ifndef DOUBT_ONCE
           beats = (joined -> DOUBTFUL_BEATS : 0)
#endif
       }
    od
}

/* What of the database takes its time. */
active proctype Database() {
end:
    do
    :: atomic {
           claim == SENDING ->
           claim = ANSWERED;
           if
           :: CLAIMABLE && claims < CLAIMS ->
               claims++;
               claim_jobs(identity);
               came_late = false;
               owner[attempts] = identity;
               answer = attempts
           :: else
           fi
       }
    :: atomic {
           late ->
           late = false;
           if
           :: MAY_BE_LATE && CLAIMABLE && claims < CLAIMS ->
               claims++;
               claim_jobs(late_for);
               owner[attempts] = late_for;
               came_late = true
           :: skip /* it is rolled back */
           fi;
           late_for = 0
       }
    od
}

/* Visit: frames of the worker, also those that a dead one left in the socket. */
active proctype Reader() {
    byte a;
end:
    do
    :: atomic {
           up && nempty(to_dispatcher) ->
           if
           :: to_dispatcher?STARTED, a -> book[a] = (book[a] == NONE -> NONE : RUNS)
           :: to_dispatcher?REPORT, a -> reporting[a] = HERE
           fi;
           a = 0
       }
    :: atomic {
           up && stray != 0 ->
           reporting[stray] = (reporting[stray] == NONE -> OLDER : reporting[stray]);
           stray = 0
       }
    od
}

/* ReportWriter._write: reports, and behind them obituaries; answered after the commit. */
proctype Results(byte a) {
end:
    do
    :: atomic {
           up && reporting[a] != NONE ->
           if
           :: FENCED(owner[a], a) -> MUST(completed_work_was_done, ran[attempts]); complete_jobs()
           :: else
           fi;
           if
           :: reporting[a] == HERE ->
               book[a] = NONE;
               if
               :: connection == ON && alive -> to_worker!REPORTED, a
               :: else
               fi
           :: else
           fi;
           reporting[a] = NONE
       }
    :: atomic {
           up && obituary[a] != NONE && REPORTS_WRITTEN ->
           if
           :: FENCED(owner[a], a) ->
               MUST(finished_work_counts, reporting[a] == NONE && !IN_SOCKET(a));
               if
               :: obituary[a] == CRASH -> MUST(a_waiting_attempt_is_not_charged, named[a]); end_crashed()
               :: obituary[a] == UNKNOWN -> end_crashed() /* nobody knows what had started */
               :: obituary[a] == RETURN -> MUST(a_started_attempt_is_charged, !ran[a] || unnamed[a]); end_released()
               fi
           :: else
           fi;
           obituary[a] = NONE
       }
    od
}

inline book_listed(a) {
    book[a] = (LISTS(a) -> HELD : NONE);
    reporting[a] = (reporting[a] == NONE -> NONE : OLDER);
    lost[a] = (LISTS(a) && knows && seen != a)
}

/* PeerSession._greet_worker: look, give back, join. While the database is away: join, and look later. */
active proctype Door() {
    bool knows;
end:
    do
    :: atomic {
           up && connection == GREETING && MAY_GREET && !greets ->
           greets = true;
           lock = LOCK_OF_HELLO;
           seen = (status == RUNNING && locked_by == identity -> attempts : 0);
           knows = true
       };
       atomic {
           up && greets && connection == GREETING ->
           if
#ifndef HELLO_GIVES_NOTHING_BACK
           :: seen != 0 && !LISTS(seen) && !IS_REPORTING(seen) -> give_back(seen)
#endif
           :: else
           fi;
join:
           book_listed(1);
           book_listed(2);
           book_listed(3);
           seen = 0;
           knows = false;
           greets = false;
           lock = (lock == GREETING_ONE -> FREE : lock);
           joined = true;
           watched = identity;
           is_stranger = false;
           beats = DOUBTFUL_BEATS;
           connection = JOINED
       }
    :: atomic {
           up && connection == GREETING && !greets && faults < FAULTS ->
           faults++;
           in_doubt = true;
           goto join
       }
    od
}

inline bury(a) {
    if
    :: is_stranger -> obituary[a] = (IS_RUNNING(a) -> UNKNOWN : NONE)
    :: !is_stranger && HAD_STARTED(a) -> obituary[a] = CRASH
    :: !is_stranger && !HAD_STARTED(a) && book[a] != NONE -> obituary[a] = RETURN
    :: else
    fi;
    book[a] = NONE
}

/* ProcessWatch._bury: after its last words, under the lock. */
active proctype Deaths() {
    byte seen_late;
end:
    do
    :: atomic {
           up && !alive && watched == identity && lock == FREE && HEARD_OUT && unseen == 0 ->
           bury(1);
           bury(2);
           bury(3);
           watched = 0;
           unseen = (is_stranger -> 0 : identity);
           is_stranger = false;
           if
           :: connection != GREETING -> close_connection()
           :: else -> joined = false
           fi
       }
    :: atomic { /* ProcessWatch._unseen: claims for it that it was never told of */
           up && unseen != 0 ->
           seen_late = (status == RUNNING && locked_by == unseen -> attempts : 0);
           if
           :: seen_late != 0 && reporting[seen_late] == NONE && obituary[seen_late] == NONE ->
               obituary[seen_late] = RETURN
           :: else
           fi;
           seen_late = 0;
           unseen = 0
       }
    od
}

#include "reconnect_worker.pml"
