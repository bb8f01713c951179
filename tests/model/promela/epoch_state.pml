/* What there is in epoch.pml, what must hold of it, and the guards. */

#define MAX_ATTEMPTS 9
#include "row.pml"

#ifndef CLAIMS
#define CLAIMS 3
#endif
#ifndef RESTORES
#define RESTORES 1
#endif
#ifndef CUTS
#define CUTS 0
#endif
#ifndef RESTARTS
#define RESTARTS 0
#endif
#ifndef TICKS
#define TICKS 1
#endif
#define STEP 5              /* of floors: more than there are claims, as 1000 is meant to be */
#define UNSEEN 9            /* no incarnation: the connection is new */

hidden byte no_pair_is_handed_out_twice = 1, a_report_closes_its_own_run = 2, hosts_overlap_only_after_a_cut = 3,
    one_attempt_runs_on_a_host = 4, no_epoch_without_cause = 5, no_attempt_waits_for_its_lease = 6, every_job_ends = 7,
    a_lost_attempt_is_not_charged = 8;

/* The database beside the row: pulse.epochs, the newest, and pulse.witnesses, one for each host. */
typedef Witness {
    bool there;
    bool puts_off;          /* put_off_jobs: the row, as long as this host has one of it in hand, and can say so */
    byte counter, highest, epoch, looked
}
bool there;                 /* the job: somebody submitted it */
bool is_fresh;              /* since the last restore */
byte tenure, charged;       /* whose run the row is of; tries that count */
byte epoch = 1, floor;
Witness witness[3];
byte incarnation;           /* system identifier, timeline, start of the server */

/* What it was like when the backup was made, or how far the standby had come. */
typedef Backup {
    bool made, there;
    mtype status;
    byte locked_by, attempts, uncharged, tenure, charged, epoch, floor;
    Witness witness[3]
}
Backup backup;

/* What a host remembers beside the database. */
typedef Memory {
    bool linked;            /* it reaches the database */
    bool knows_other;       /* of the other host */
    byte looked;            /* the incarnation that its connection is known to be of */
    byte comes_to;          /* the one that it has seen, and will tell that it has come */
    byte counter, epoch, highest;
    byte pair;              /* the newest attempt that it claimed since its last confirmed tick, or has in hand */
    byte ticks
}
Memory host[3];

/* Attempts that were handed out. */
mtype = { NOWHERE, IN_HAND, LOST, HOME };
typedef Run {
    mtype at;
    byte host, token
}
Run run_of[CLAIMS + 1];
byte runs;
int handed_out[3];          /* a bit for each attempt */
bool is_silent[3];          /* for a lease: nobody waits for it, until it has looked again */
bool comes_back[3];
bool was_cut[3];            /* since what it has in hand began */
bool has_cause[3];          /* the database went back since the host last looked */
byte restores, cuts, restarts;

#define BUDGET_IS_KNOWN (status != RUNNING)
#define OTHER_THAN(me) (3 - (me))
#define WAS_HANDED_OUT(me, attempt) (handed_out[me] >> (attempt) & 1)
#define HOLDS(a, me) (run_of[a].host == (me) && (run_of[a].at == IN_HAND || run_of[a].at == LOST))
#define ANY_IN_HAND(me) (HOLDS(1, me) || HOLDS(2, me) || HOLDS(3, me))
#ifdef LOST_PAIRS_COUNT
#define COUNTS(a, me) HOLDS(a, me)
#else
#define COUNTS(a, me) (run_of[a].host == (me) && run_of[a].at == IN_HAND)
#endif
#define ANY_COUNTS(me) (COUNTS(1, me) || COUNTS(2, me) || COUNTS(3, me))
#define OWNS_ROW(a, me) (HOLDS(a, me) && run_of[a].token == attempts)
#define ROW_IS_HELD(me) (OWNS_ROW(1, me) || OWNS_ROW(2, me) || OWNS_ROW(3, me))
#define GREATER(one, other) ((one) > (other) -> (one) : (other))
#define IS_KNOWN(me) (witness[me].there && witness[me].counter >= host[me].counter && witness[me].epoch == host[me].epoch && \
    epoch == host[me].epoch)
#define IS_LESS(me) (!witness[me].there || witness[me].counter < host[me].counter || witness[me].epoch < host[me].epoch || \
    epoch < host[me].epoch)
#define IS_DUE(me) (!witness[OTHER_THAN(me)].puts_off || !ANY_IN_HAND(OTHER_THAN(me)) || is_silent[OTHER_THAN(me)])
#define HAS_LOOKED(one) (witness[one].there && witness[one].looked == incarnation && witness[one].epoch == epoch)

/* The guards, and what is left of them in a broken variant. */
#ifdef PAIRS_ARE_FORGOTTEN
#define KNOWS_LESS(me) (host[me].epoch != 0 && IS_LESS(me))
#else
#define KNOWS_LESS(me) (host[me].epoch != 0 && (IS_LESS(me) || attempts < host[me].pair))
#endif
#ifdef COMES_BLINDLY
#define COMES_TO_WHAT_IT_SAW(me) true
#else
#define COMES_TO_WHAT_IT_SAW(me) (host[me].comes_to == incarnation)
#endif
#ifdef CLAIMS_WITHOUT_COUNTER
#define MAY_CLAIM(me) true
#else
#define MAY_CLAIM(me) IS_KNOWN(me)
#endif
#ifdef TICKS_BLINDLY
#define MAY_TICK(me) (epoch == host[me].epoch)
#else
#define MAY_TICK(me) IS_KNOWN(me)
#endif
#ifdef PEERS_ARE_FORGOTTEN
#define IS_ALONE(me) (!witness[OTHER_THAN(me)].there)
#else
#define IS_ALONE(me) (!witness[OTHER_THAN(me)].there && !host[me].knows_other)
#endif
#if defined(NO_GATE)
#define IS_OPEN_TO(me) true
#elif defined(GATE_OF_EPOCHS_ONLY)
#define IS_OPEN_TO(me) (IS_ALONE(me) || witness[OTHER_THAN(me)].epoch == epoch || is_silent[OTHER_THAN(me)])
#elif defined(GATE_OF_LOOKS_ONLY)
#define IS_OPEN_TO(me) (IS_ALONE(me) || witness[OTHER_THAN(me)].looked == incarnation || is_silent[OTHER_THAN(me)])
#elif defined(GATE_WITHOUT_END)
#define IS_OPEN_TO(me) (IS_ALONE(me) || HAS_LOOKED(OTHER_THAN(me)))
#else
#define IS_OPEN_TO(me) (IS_ALONE(me) || HAS_LOOKED(OTHER_THAN(me)) || is_silent[OTHER_THAN(me)])
#endif
#ifdef JOINS
#define IS_SEEN(me) (host[OTHER_THAN(me)].knows_other) /* at least a tick old */
#else
#define IS_SEEN(me) true
#endif
/* Where none joins the hosts are alike: the first to claim is called 1, unless 1 is cut off already. */
#ifdef JOINS
#define IS_CALLED(me) true
#else
#define IS_CALLED(me) (runs > 0 || me == 1 || !host[1].linked)
#endif
#ifdef HANDS_OUT_BLINDLY
#define MAY_HAND_OUT(me) true
#else
#define MAY_HAND_OUT(me) (!ANY_IN_HAND(me))
#endif
#if defined(FLOOR_STAYS)
#define FLOOR_FOR_ROW 0
#elif defined(FLOOR_FOR_OLD_ROWS_ONLY)
#define FLOOR_FOR_ROW (is_fresh -> 0 : floor)
#else
#define FLOOR_FOR_ROW floor
#endif
/* A backup that is older than a tick of each host: restored into the running server, or while dispatchers start anew. */
#if defined(IN_PLACE) || RESTARTS > 0
#define IS_OLDER(one) (backup.witness[one].counter < host[one].counter)
#define MAY_RESTORE (IS_OLDER(1) && IS_OLDER(2))
#else
#define MAY_RESTORE true
#endif

inline copy_witness(to, from) {
    to.there = from.there;
    to.counter = from.counter;
    to.highest = from.highest;
    to.epoch = from.epoch;
    to.looked = from.looked;
    to.puts_off = from.puts_off
}

inline make_backup() {
    backup.made = true;
    backup.there = there;
    backup.status = status;
    backup.locked_by = locked_by;
    backup.attempts = attempts;
    backup.uncharged = uncharged;
    backup.tenure = tenure;
    backup.charged = charged;
    backup.epoch = epoch;
    backup.floor = floor;
    copy_witness(backup.witness[1], witness[1]);
    copy_witness(backup.witness[2], witness[2])
}

inline go_back() {
    there = backup.there;
    is_fresh = false;
    status = backup.status;
    locked_by = backup.locked_by;
    attempts = backup.attempts;
    uncharged = backup.uncharged;
    tenure = backup.tenure;
    charged = backup.charged;
    lease = (status == RUNNING -> LEASE : 0);
    epoch = backup.epoch;
    floor = backup.floor;
    copy_witness(witness[1], backup.witness[1]);
    copy_witness(witness[2], backup.witness[2])
}

/* Nobody goes back to it any more. */
inline forget_backup() {
    backup.there = false;
    backup.status = 0;
    backup.locked_by = 0;
    backup.attempts = 0;
    backup.uncharged = 0;
    backup.tenure = 0;
    backup.charged = 0;
    backup.epoch = 0;
    backup.floor = 0;
    copy_witness(backup.witness[1], witness[0]);
    copy_witness(backup.witness[2], witness[0])
}
