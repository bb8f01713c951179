/* What there is in reconnect.pml, what must hold of it, and the guards. */

#define MAX_ATTEMPTS 9
#include "row.pml"

#define CLAIMS 3
#ifndef FAULTS
#define FAULTS 2
#endif
#ifndef CANCELS
#define CANCELS 0
#endif
#define OTHER 9 /* another worker of this host, always connected, which tries the job at once and fails */
#define NONE 0

hidden byte one_attempt_runs_at_a_time = 1, finished_work_counts = 2, a_started_attempt_is_charged = 3,
    a_waiting_attempt_is_not_charged = 4, what_is_held_is_not_given_back = 5, no_attempt_waits_for_its_lease = 6,
    no_job_is_left_waiting = 7, completed_work_was_done = 8;

/* The worker. What it holds waits, is named as started, is called, has ended, its result is under way. */
mtype = { QUEUED, NAMED, CALLED, ENDED, SENT };
mtype = { OFF, GREETING, JOINED, ON };      /* no connection; hello was sent; it was answered; the welcome was read */
bool alive = true;
byte identity = 1;
mtype connection = OFF;
mtype at[CLAIMS + 1];
bool ran[CLAIMS + 1], named[CLAIMS + 1];    /* its handler was called; `started` was written */
bool lost[CLAIMS + 1];                      /* said in the welcome */
bool unnamed[CLAIMS + 1];                   /* it ran in a process that died before it could name it (again) */

mtype = { ASSIGN, REPORTED, STOP, STARTED, REPORT };
chan to_worker = [8] of { mtype, byte };
chan to_dispatcher = [4] of { mtype, byte };
byte stray;                                 /* a report that an older connection may still bring */

/* The dispatcher: desk, claims, results, deaths. */
mtype = { FREE, CLAIMING, GREETING_ONE };
mtype = { HELD, RUNS };
mtype = { HERE, OLDER };                    /* which connection it came on */
mtype = { CRASH, RETURN, UNKNOWN };         /* it had started; it had not; nobody knows */
bool up = true;
mtype lock = FREE;                          /* InDoubtClaims._lock */
bool greets;                                /* a hello is between its look and its answer */
bool joined;                                /* the worker is in the desk */
byte watched;                               /* whose pidfd is watched */
bool is_stranger;                           /* it has not said hello to this dispatcher */
byte unseen;                                /* whom ProcessWatch._unseen is still to look for */
mtype book[CLAIMS + 1];                     /* HeldJobs.held */
mtype reporting[CLAIMS + 1];                /* WorkerRegistry.reporting */
mtype obituary[CLAIMS + 1];                 /* Obituary, in the batcher behind the reports */
bool in_doubt;                              /* InDoubtClaims.doubt */
byte beats;                                 /* Contact.doubtful_beats */
byte seen;                                  /* running_of_worker, as it was read */
bool canceled[CLAIMS + 1];                  /* Handout.forget */

/* The database beside the row. */
mtype = { SENDING, ANSWERED };
mtype claim = NONE;                         /* the statement that is under way */
byte answer;
bool late;                                  /* one whose dispatcher does not wait for it any more */
byte late_for, owner[CLAIMS + 1];           /* locked_by of each attempt */
bool came_late;                             /* the newest claim */
byte last_worker;                           /* of a canceled attempt: last_workers */

byte claims, faults, cancels, to_forget;

#define AT_REST(a) (at[a] == NONE || at[a] == ENDED || at[a] == SENT)
#define RUNNING_AT(a) (at[a] == NAMED || at[a] == CALLED)
#define OTHERS_RUN(a) ((a != 1 && RUNNING_AT(1)) || (a != 2 && RUNNING_AT(2)) || (a != 3 && RUNNING_AT(3)))
#define LISTS(a) (at[a] != NONE)
#define ANY(array) (array[1] || array[2] || array[3])
#define IS_RUNNING(a) (status == RUNNING && locked_by == identity && attempts == (a))
#define OWNER_IS_DEAD (locked_by != identity || !alive)
#define TOLD(a) to_worker??[ASSIGN, eval(a)]
#define IN_SOCKET(a) to_dispatcher??[REPORT, eval(a)]

/* The guards, and what is left of them in a broken variant. */
#ifdef HELLO_IGNORES_REPORTS
#define IS_REPORTING(a) false
#else
#define IS_REPORTING(a) (reporting[a] != NONE)
#endif
#ifdef HELLO_WITHOUT_LOCK
#define MAY_GREET true
#define LOCK_OF_HELLO lock
#else
#define MAY_GREET (lock == FREE)
#define LOCK_OF_HELLO GREETING_ONE
#endif
#ifdef GIVES_BACK_WHAT_IS_HELD
#define IN_BOOK(a) false
#else
#define IN_BOOK(a) (book[a] != NONE)
#endif
#ifdef CHARGES_THE_WAITING
#define HAD_STARTED(a) (book[a] != NONE)
#else
#define HAD_STARTED(a) (book[a] == RUNS)
#endif
#ifdef LOCK_IS_KEPT
#define LOCK_AFTER_FAILURE lock
#else
#define LOCK_AFTER_FAILURE FREE
#endif
#ifdef OBITUARY_BEFORE_LAST_WORDS
#define HEARD_OUT true
#else
#define HEARD_OUT (empty(to_dispatcher) && stray == 0)
#endif
#ifdef OBITUARY_BEFORE_REPORTS
#define REPORTS_WRITTEN true
#else
#define REPORTS_WRITTEN (!ANY(reporting))
#endif
#ifdef NO_DOUBTS
#define DOUBTFUL_BEATS 0
#else
#define DOUBTFUL_BEATS 2
#endif
#ifdef RETRY_WHILE_HELD
#define HELD_HERE false
#else
#define HELD_HERE (joined && ANY(book))
#endif
#ifdef RETRY_WHILE_ABSENT
#define ABSENT false
#else
#define ABSENT (!joined && alive && last_worker == identity)
#endif
#ifdef ELSEWHERE
#define MAY_RETRY true
#else
#define MAY_RETRY (up && !HELD_HERE && !ABSENT)
#endif
#ifdef HANDS_OUT_BLINDLY
#define MAY_HAND_OUT true
#else
#define MAY_HAND_OUT (!ANY(book))           /* nobody who is watched, connected or not, holds an attempt of it */
#endif
#ifdef NO_KILLS
#define KILLS false
#else
#define KILLS true                          /* of the dispatcher */
#endif
#ifdef NOTHING_IS_LATE
#define MAY_BE_LATE false
#else
#define MAY_BE_LATE true
#endif

/* What was under way lies in the tray again. */
inline take_back(a) {
    if
    :: at[a] == SENT -> at[a] = ENDED
    :: else
    fi;
    lost[a] = false
}

/* A frame of the dispatcher, as the worker takes it. */
hidden mtype kind;
hidden byte about;
inline take_frame() {
    to_worker?kind, about;
    if
    :: kind == ASSIGN -> at[about] = QUEUED
    :: kind == REPORTED -> at[about] = NONE
    :: kind == STOP -> at[about] = (at[about] == QUEUED -> ENDED : at[about])
    fi
}

inline close_connection() {
    connection = OFF;
    joined = false;
    beats = 0;
    do
    :: nempty(to_worker) -> to_worker?_, _
    :: empty(to_worker) -> break
    od
}

/* The other side has gone. A living worker may have read some of what was written before. */
inline lose_connection() {
    do
    :: alive && connection == ON && nempty(to_worker) -> take_frame()
    :: break
    od;
    close_connection();
    take_back(1);
    take_back(2);
    take_back(3)
}

inline forget_worker(a) {
    at[a] = NONE;
    lost[a] = false
}
