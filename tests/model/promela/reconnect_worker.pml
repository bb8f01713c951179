/* The worker of reconnect.pml, who starts and ends processes, an operator; and the look at the end of every run. */

/* The worker's loop: what is read. */
active proctype Worker() {
    byte a;
end:
    do
    :: atomic {
           alive && connection == JOINED && nfull(to_dispatcher) ->
           connection = ON;
           a = 1;
           do
           :: a <= CLAIMS ->
               if
               :: at[a] != NONE && named[a] -> to_dispatcher!STARTED, a /* it is told again */
               :: at[a] == QUEUED && lost[a] -> at[a] = ENDED
               :: else
               fi;
               lost[a] = false;
               a++
           :: else -> break
           od;
           a = 0
       }
    :: atomic {
           alive && connection == ON && nempty(to_worker) -> take_frame()
       }
    od
}

inline call(a) {
    at[a] = CALLED;
    ran[a] = true;
    MUST(one_attempt_runs_at_a_time, !OTHERS_RUN(a))
}

/* One attempt at the worker: named, called, ended, told. */
proctype Attempt(byte a) {
end:
    do
#ifdef NAMED_AFTER_CALL
    :: atomic { alive && connection == ON && at[a] == QUEUED && nfull(to_dispatcher) -> call(a); at[a] = NAMED }
    :: atomic {
           alive && at[a] == NAMED && nfull(to_dispatcher) ->
           at[a] = CALLED;
           named[a] = true;
           to_dispatcher!STARTED, a
       }
#else
    :: atomic {
           alive && connection == ON && at[a] == QUEUED && nfull(to_dispatcher) ->
           at[a] = NAMED;
           named[a] = true;
           to_dispatcher!STARTED, a
       }
    :: atomic { alive && at[a] == NAMED -> call(a) }
#endif
    :: atomic { alive && at[a] == CALLED -> at[a] = ENDED }
    :: atomic {
           alive && connection == ON && at[a] == ENDED && nfull(to_dispatcher) ->
           at[a] = SENT;
           to_dispatcher!REPORT, a
       }
    od
}

/* The first heartbeats of a connection, PeerSession._hear_worker; the last one comes when no claim can commit any more. */
active proctype Beats() {
end:
    do
    :: atomic { up && alive && connection == ON && beats > 0 && (beats > 1 || !late) -> beats--; in_doubt = true }
    od
}

inline die(a) {
    unnamed[a] = (ran[a] && (connection != ON || at[a] == NONE));
    forget_worker(a)
}

/* The worker's process: it says hello, loses its connection, starts anew, dies; its pool starts another one. */
active proctype Process() {
end:
    do
    :: atomic { up && alive && connection == OFF && !greets -> connection = GREETING }
    :: atomic {
           alive && (connection == JOINED || connection == ON) && faults < FAULTS ->
           faults++;
           if
           :: to_dispatcher?[REPORT, _] -> to_dispatcher?REPORT, stray
           :: skip
           fi;
           do
           :: nempty(to_dispatcher) -> to_dispatcher?_, _
           :: empty(to_dispatcher) -> break
           od;
           lose_connection();
           if
           :: skip
           :: AT_REST(1) && AT_REST(2) && AT_REST(3) ->
               forget_worker(1); forget_worker(2); forget_worker(3) /* it was closed, and opened again */
           fi
       }
    :: atomic {
           alive && faults < FAULTS ->
           faults++;
           alive = false;
           die(1);
           die(2);
           die(3);
           if
           :: connection == GREETING && !greets && watched != identity -> connection = OFF
           :: else
           fi
       }
    :: atomic {
           !alive && watched != identity && connection == OFF && !greets ->
           alive = true;
           identity++
       }
    od
}

inline forget_dispatcher(a) {
    book[a] = NONE;
    reporting[a] = NONE;
    obituary[a] = NONE;
    canceled[a] = false
}

/* The dispatcher is killed; the next one buries whom nobody watched, before its first claim. */
active proctype Supervisor() {
end:
    do
    :: atomic {
           up && faults < FAULTS && !greets && KILLS ->
           faults++;
           up = false;
           late = (late || claim == SENDING);
           late_for = (claim == SENDING -> identity : late_for);
           claim = NONE;
           answer = 0;
           lock = FREE;
           in_doubt = false;
           watched = 0;
           is_stranger = false;
           unseen = 0;
           stray = 0;
           to_forget = 0;
           do
           :: nempty(to_dispatcher) -> to_dispatcher?_, _
           :: empty(to_dispatcher) -> break
           od;
           lose_connection();
           forget_dispatcher(1); forget_dispatcher(2); forget_dispatcher(3)
       }
    :: atomic {
           !up ->
           up = true;
           if
           :: status == RUNNING && (locked_by != identity || !alive) -> end_crashed() /* bury_forgotten */
           :: status == RUNNING && locked_by == identity && alive -> /* ProcessWatch.adopt */
               watched = identity;
               is_stranger = true
           :: else
           fi
       }
    od
}

/* jobs.cancel_jobs and retry_jobs. */
active proctype Operator() {
end:
    do
    :: atomic {
           up && cancels < CANCELS && (status == RUNNING || CLAIMABLE) ->
           cancels++;
           to_forget = (status == RUNNING -> attempts : 0);
           last_worker = (status == RUNNING -> locked_by : 0);
           cancel_jobs()
       }
    :: atomic {
           up && to_forget != 0 ->
           canceled[to_forget] = true;
           if
           :: joined && book[to_forget] != NONE -> to_worker!STOP, to_forget
           :: else
           fi;
           to_forget = 0
       }
    :: atomic { status == CANCELED && to_forget == 0 && MAY_RETRY -> last_worker = 0; retry_jobs() }
    od
}

/* When nothing moves any more. */
active proctype Audit() {
    run Results(1);
    run Results(2);
    run Results(3);
    run Attempt(1);
    run Attempt(2);
    run Attempt(3);
end:
    atomic {
        timeout ->
        MUST(no_attempt_waits_for_its_lease, status != RUNNING || (came_late && OWNER_IS_DEAD));
        MUST(no_job_is_left_waiting, !CLAIMABLE || claims == CLAIMS)
    }
}
