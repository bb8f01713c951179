/*
 * Dependencies: a job begins to wait for others in the moment in which these end.
 *
 * One child and two parents. The child's transaction looks at the parents, joins them at its commit, and keeps their rows
 * locked until then. Each end is one statement: it takes its snapshot, waits for the row, tells the child, and commits.
 * Parents may be ended by somebody's SQL, which tells nobody. Two watchdogs walk through the dependencies.
 */

#include "row.pml"

#define PARENTS 2

hidden byte no_child_starts_early = 1, no_child_waits_for_ever = 2;

bool ended[PARENTS], locked[PARENTS], is_parent[PARENTS]; /* rows of the parents; a lock lasts until a commit */
bool is_there, is_locked;         /* the child has committed; its row and its dependencies are locked */
bool is_over[PARENTS];            /* of the dependencies */
byte waiting_on = PARENTS;

/* What pulse.settle does for one dependency, as it commits. */
inline count_down(parent) {
    is_over[parent] = true;
    waiting_on = (waiting_on > 0 -> waiting_on - 1 : 0);
    MUST(no_child_starts_early, waiting_on > 0 || (ended[0] && ended[1]))
}

active proctype Submit() {
    byte each;
    bool has_ended, is_twice;
    bool over[PARENTS];           /* of its own dependencies, which nobody else sees yet */

    atomic { over[0] = ended[0]; over[1] = ended[1] } /* add_dependencies */
    do
    :: each < PARENTS ->          /* join_parent, for one after the other */
#ifdef JOINS_WITHOUT_LOCK
       atomic { has_ended = ended[each] };
#else
       atomic { !locked[each] -> locked[each] = true; has_ended = ended[each] };
#endif
#ifdef OVER_IS_FORGOTTEN
       is_twice = over[each] && has_ended; /* once by add_dependencies, once by join_parent */
#endif
#ifndef JOINS_WITHOUT_LOOK
       over[each] = over[each] || has_ended;
#endif
       each++
    :: else -> break
    od;
    atomic { /* COMMIT */
        is_there = true;
        is_parent[0] = true; is_parent[1] = true;
        if
        :: over[0] -> count_down(0)
        :: else
        fi;
        if
        :: over[1] -> count_down(1)
        :: else
        fi;
#ifdef OVER_IS_FORGOTTEN
        if
        :: is_twice -> count_down(0)
        :: else
        fi;
#endif
#ifndef JOINS_WITHOUT_LOCK
        locked[0] = false; locked[1] = false;
#endif
        each = 0; has_ended = false; is_twice = false; over[0] = false; over[1] = false
    }
}

#define WAITS_FOR(parent) (is_there && !is_over[parent])

/* end_attempts, complete_parents, cancel_jobs. */
active [PARENTS] proctype End() {
    byte me = _pid - 1;
    bool saw, tells;

    if
#ifndef NO_HAND
    :: atomic { !locked[me] -> ended[me] = true; goto by_hand }
#endif
    :: saw = WAITS_FOR(me)        /* the snapshot of the statement */
    fi;
    atomic { !locked[me] -> locked[me] = true };
    if
#ifdef NO_PARENT_TELLS
    :: skip
#else
    :: atomic { is_parent[me] && !is_locked -> /* pulse.settle sees what has committed by now */
#ifdef SETTLES_BY_THE_SNAPSHOT
           tells = saw;
#else
           tells = WAITS_FOR(me);
#endif
           is_locked = tells
       }
    :: !is_parent[me]
#endif
    fi;
    atomic { /* COMMIT */
        ended[me] = true;
        if
        :: tells -> count_down(me); is_locked = false
        :: else
        fi;
        locked[me] = false
    }
by_hand:
    atomic { saw = false; tells = false; me = 0 }
}

#define FORGOTTEN(parent) (WAITS_FOR(parent) && ended[parent])

#ifndef NOBODY_WALKS
/* settle_forgotten. */
active [2] proctype Watchdog() {
    byte parent;
end:
    do
    :: atomic {
           if
           :: FORGOTTEN(0) -> parent = 0
           :: FORGOTTEN(1) -> parent = 1
           fi
       };
#ifdef DEPENDENCIES_ARE_NOT_LOCKED
       atomic { count_down(parent) }
#else
       atomic { !is_locked -> is_locked = true }; /* FOR UPDATE */
       atomic {
           if
           :: WAITS_FOR(parent) -> count_down(parent)
           :: else
           fi;
           is_locked = false
       }
#endif
    od
}
#endif

/* When nothing more can happen. */
active proctype Audit() {
    atomic { timeout -> MUST(no_child_waits_for_ever, waiting_on == 0) }
}
