/*
 * The row of one job, and the statements of pulse/store/sql that change it, each atomic as in PostgreSQL.
 *
 * Workers are numbers, 0 is NULL. The lease is counted in ticks that are left; at 0 it has lapsed.
 */

/* What must hold, by a name that the verifier prints, a byte with its own number. -DONLY=name: nothing else must. */
#ifdef ONLY
#define MUST(name, condition) assert((condition) || name != ONLY)
#else
#define MUST(name, condition) assert((condition) || name == 0)
#endif

#ifndef LEASE
#define LEASE 1
#endif
#ifndef MAX_ATTEMPTS
#define MAX_ATTEMPTS 2
#endif
#define MAX_CRASHES 2

mtype = { PENDING, RUNNING, RETRYING, COMPLETED, DEAD_LETTERED, CANCELED }; /* pulse.job_status */
mtype = { OK, ERROR, RELEASE };                                               /* outcomes of a report */

mtype status = PENDING;
byte locked_by, attempts, uncharged, crashes, lease;

#define CLAIMABLE (status == PENDING || status == RETRYING)
#define TERMINAL  (status == COMPLETED || status == DEAD_LETTERED || status == CANCELED)
#define LAPSED    (status == RUNNING && lease == 0)

/* The WHERE of every write in the name of a worker. */
#if defined(FENCE_ON_OWNER_ONLY)
#define FENCED(worker, attempt) (status == RUNNING && locked_by == (worker))
#elif defined(FENCE_ON_ATTEMPT_ONLY)
#define FENCED(worker, attempt) (attempts == (attempt))
#elif defined(FENCE_WITHOUT_STATUS)
#define FENCED(worker, attempt) (locked_by == (worker) && attempts == (attempt))
#elif defined(FENCE_WITHOUT_OWNER)
#define FENCED(worker, attempt) (status == RUNNING && attempts == (attempt))
#else
#define FENCED(worker, attempt) (status == RUNNING && locked_by == (worker) && attempts == (attempt))
#endif

/* The CHECK "a lease if and only if RUNNING": every statement that leaves RUNNING takes the lease with it. */
inline leave_running() {
#ifndef ROW_KEEPS_ITS_LEASE
    locked_by = 0;
#endif
    lease = 0
}

inline claim_jobs(worker) {
    attempts++;
    status = RUNNING;
    locked_by = worker;
    lease = LEASE
}

inline complete_jobs() {
    status = COMPLETED;
    leave_running()
}

inline extend_leases() {
    lease = LEASE
}

/* end_attempts, by outcome. Charged tries are attempts - uncharged; error, lease_expired and others count as one. */
inline end_charged() {
    status = (attempts - uncharged >= MAX_ATTEMPTS -> DEAD_LETTERED : RETRYING);
    leave_running()
}

/* released, unassigned: PENDING again where no charged try lies behind it. */
inline end_released() {
#if defined(GIVE_BACK_LOWERS_ATTEMPTS)
    attempts--;
#elif !defined(GIVE_BACK_IS_CHARGED)
    uncharged++;
#endif
    status = (attempts == uncharged -> PENDING : RETRYING);
    leave_running()
}

/* crashed: uncharged, and spends a budget of its own. */
inline end_crashed() {
    uncharged++;
    crashes++;
    status = (crashes >= MAX_CRASHES -> DEAD_LETTERED : RETRYING);
    leave_running()
}

inline cancel_jobs() {
    status = CANCELED;
    leave_running()
}

inline retry_jobs() {
    status = PENDING;
#ifdef RETRY_RESETS_ATTEMPTS
    attempts = 0;
    uncharged = 0;
#else
    uncharged = attempts;
#endif
    crashes = 0
}
