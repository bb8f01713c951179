/*
 * The fence: no write in the name of an attempt that does not hold the row any more changes it, whatever is late.
 *
 * One job, two workers. Leases lapse whenever they like, so every worker may be a zombie: stopped, reaped, and back
 * with its report. Reports are repeated at will. Dispatchers die with claims that they told nobody. An operator cancels
 * and retries. What only time or locks keep apart elsewhere is not kept apart here.
 * What the fence stops changes nothing, and is no step.
 *
 * A claim, and a move of one, begins a new tenure. A write belongs to the tenure that it was made for, which the code
 * cannot see: where the fence lets it through, it must be the present one.
 */

#include "row.pml"

#ifndef CLAIMS
#define CLAIMS 3
#endif
#define RETRIES 1

hidden byte stale_writes_change_nothing = 1, the_token_grows_by_one = 2, a_job_is_completed_once = 3,
    a_taken_report_completed_it = 4, only_lapsed_leases_are_reaped = 5, running_means_leased = 6, budgets_are_kept = 7,
    terminal_is_final = 8;

byte claims, tenure, last_token;  /* how many so far; the newest token */
byte charged;                     /* tries that count, since the last retry */
byte completed_by;                /* the tenure that did; 0: not completed */
byte retries;
byte given_up_worker, given_up_token, given_up_tenure; /* a claim that nobody was told of */

#define BUDGET_IS_KNOWN (status != RUNNING && status != CANCELED)
#define MAY_COME_TO(end) (outcome == 0 || outcome == end)
#define HOLDS(mine) MUST(stale_writes_change_nothing, status == RUNNING && (mine) == tenure)

/* The life of one claim, from Handout.fetch to the answer of its report. */
proctype Attempt(byte me) {
    byte worker, token, mine;
    mtype outcome;
    bool told;                    /* the worker, of the claim */

end:
    atomic {
        CLAIMABLE && claims == me - 1 ->
        claims++;
        if
        :: worker = 1
        :: me > 1 -> worker = 2 /* the first claim's is called 1 */
        fi;
        claim_jobs(worker);
        MUST(the_token_grows_by_one, attempts == last_token + 1);
        last_token = attempts;
        token = attempts;
        tenure++;
        mine = tenure
    }
end_of_told:
    do
    :: atomic { /* Handout._hand_out: move_claims, to a worker that has the handler */
           !told && FENCED(worker, token) ->
           HOLDS(mine);
           locked_by = 3 - worker;
           tenure++;
           mine = tenure;
           worker = 3 - worker;
           told = true
       }
    :: atomic { /* the dispatcher is killed before it told anybody; its successor finds the row, GiveBack */
           !told && given_up_worker == 0 ->
           given_up_worker = worker;
           given_up_token = token;
           given_up_tenure = mine
       };
end_of_untold:
       atomic { FENCED(worker, token) -> HOLDS(mine); locked_by = 3 - worker; tenure++ }; /* a move that commits late */
       break
    :: atomic { /* the worker holds it; HeartbeatWriter._extend */
           FENCED(worker, token) && outcome == 0 -> HOLDS(mine); extend_leases(); told = true
       }
    :: atomic { /* ReportWriter._write, as often as the answer is lost */
           FENCED(worker, token) && MAY_COME_TO(OK) ->
           outcome = OK;
           HOLDS(mine);
           MUST(a_job_is_completed_once, completed_by == 0);
           completed_by = mine;
           charged++;
           complete_jobs()
       }
    :: atomic { FENCED(worker, token) && MAY_COME_TO(ERROR) -> outcome = ERROR; HOLDS(mine); charged++; end_charged() }
    :: atomic { FENCED(worker, token) && MAY_COME_TO(RELEASE) -> outcome = RELEASE; HOLDS(mine); end_released() }
    :: atomic {
#ifdef TAKEN_WITHOUT_ATTEMPT
           !FENCED(worker, token) && MAY_COME_TO(OK) && status == COMPLETED ->
#else
           /* completed_at_attempt: a repetition, and not stale */
           !FENCED(worker, token) && MAY_COME_TO(OK) && status == COMPLETED && attempts == token ->
#endif
           outcome = OK;
           MUST(a_taken_report_completed_it, completed_by == mine)
       }
    od;
    atomic { worker = 0; token = 0; mine = 0 }
}

/* Watchdog.turn: lapsed_attempts, and later end_attempts, which looks at the lease again. */
active proctype Watchdog() {
    byte worker, token, seen;
end:
    do
    :: atomic { LAPSED -> worker = locked_by; token = attempts; seen = tenure };
       atomic {
           if
#ifdef REAP_WITHOUT_LOOKING_AGAIN
           :: FENCED(worker, token) ->
#else
           :: FENCED(worker, token) && lease == 0 ->
#endif
               HOLDS(seen);
               MUST(only_lapsed_leases_are_reaped, lease == 0);
               charged++;
               end_charged()
           :: else
           fi;
           worker = 0; token = 0; seen = 0
       }
    od
}

/* give_back_unlisted: what is RUNNING under a worker that was never told of it. */
active proctype GiveBack() {
end:
    do
    :: atomic {
           given_up_worker != 0 ->
           if
           :: FENCED(given_up_worker, given_up_token) -> HOLDS(given_up_tenure); end_released()
           :: else
           fi;
           given_up_worker = 0; given_up_token = 0; given_up_tenure = 0
       }
    od
}

/* jobs.cancel_jobs and retry_jobs: they act on the row whatever it is, without a worker's name. */
active proctype Operator() {
end:
    do
    :: atomic { CLAIMABLE || status == RUNNING -> cancel_jobs() }
    :: atomic { TERMINAL && retries < RETRIES -> retries++; retry_jobs(); charged = 0; completed_by = 0 }
    od
}

/* Time: any lease may lapse. */
active proctype Clock() {
end:
    do
    :: atomic { status == RUNNING && lease > 0 -> lease = 0 }
    od
}

/* What holds of the row at any time. */
active proctype Audit() {
    byte me = 1;
    atomic {
        do
        :: me <= CLAIMS -> run Attempt(me); me++
        :: else -> break
        od
    }
end:
    do
    :: atomic { (status == RUNNING) != (locked_by != 0) -> MUST(running_means_leased, false) }
    :: atomic { BUDGET_IS_KNOWN && attempts - uncharged != charged -> MUST(budgets_are_kept, false) }
    :: atomic { charged > MAX_ATTEMPTS -> MUST(budgets_are_kept, false) }
    :: atomic { completed_by != 0 && status != COMPLETED -> MUST(terminal_is_final, false) }
    od
}
