/* SPDX-License-Identifier: MIT */
/*
 * The part of the model that threads.pml and tasks.pml share: a device, two CQs on a channel, and
 * what csrc/notify/events.c and fetch.c do with them. tests/model/replay.py has the same
 * transitions, under the same names, for the traces of the real core.
 *
 * In a simulation the steps are printed, as a debug build of the core writes them.
 *
 * The device is the worst that the verbs allow: an arm for solicited completions replaces one for
 * any, as on siw, and a resize disarms the CQ. A poll returns at most BATCH completions, so that a
 * few are already more than one poll returns.
 *
 * The code of a thread is one atomic sequence, which others interrupt only at `pause ? 0`: before
 * each call of a verb, where the device may act, and wherever `gil` is free, where other threads
 * may act as well. In between nothing can tell when they act.
 */

#define NCQ 2
#define NWC 3

/* where a completion is */
#define NOWHERE 0   /* its work request was not posted yet */
#define POSTED 1    /* the device has its work request */
#define QUEUED 2    /* in the CQ of the device */
#define STASHED 3   /* in the stash of the CQ */
#define TAKEN 4     /* in an awaitable, whose task has yet to go on */
#define DELIVERED 5 /* returned to the program */
#define DROPPED 6   /* of no interest to anybody */
#define LOST 7      /* by a mutant */

/* for what a CQ is armed; each includes the one before */
#define UNARMED 0
#define SOLICITED 1
#define ANY 2

byte place[NWC], home[NWC]; /* of each completion: where it is, and its CQ */
bool urgent[NWC];           /* its sender has set SOLICITED */
byte device[NCQ];           /* for what the device has the CQ armed */
byte armed[NCQ];            /* the same in the record of the core */
bool stale[NCQ];            /* a wait has ended without an event since: the record does not count */
bool closed[NCQ];           /* the handle is gone, or is being destroyed */
byte unacked[NCQ];          /* events that were counted and not acknowledged */
byte owed[NCQ];             /* events for whose acknowledgement ibv_destroy_cq(3) would wait */
byte late[NCQ], prepaid[NCQ];
bool listed[NCQ];           /* in the channel's list of CQs with late events */
chan channel = [4] of { byte };
bool gil = true; /* until init has chosen the configuration */
bool fresh; /* the lock was just taken: the device has acted while it was free */
chan pause = [0] of { bit }; /* ends when the device, or the scheduler, wants it to */
hidden byte i_, n_, any_;   /* inside a d_step only */

#define LOCK !gil -> gil = true; fresh = true
#define UNLOCK gil = false; fresh = false
#define BEFORE_VERB if :: fresh -> fresh = false :: else -> pause ? 0 fi
#define WINDOW UNLOCK; pause ? 0; LOCK /* where the core releases the lock */

#define known(c) (TRUSTED || !stale[c] -> armed[c] : UNARMED)
#define is_armed(c, solicited) (known(c) >= (solicited -> SOLICITED : ANY))
#ifdef MUTANT_timed_out_waiter_trusts_its_record
#define TRUSTED true
#else
#define TRUSTED false
#endif

#define any_in(c, where) \
    ((home[0] == c && place[0] == where) || (home[1] == c && place[1] == where) || \
     (home[2] == c && place[2] == where))
#define stash_is_empty(c) (!any_in(c, STASHED))

#define CHANNEL 9 /* in what is printed */
hidden byte kept_;

inline deliver(k) { /* to the program, inside a d_step */
    assert(place[k] == STASHED || place[k] == TAKEN);
    if
    :: place[k] == STASHED -> printf("take %x 1 0 0\n", home[k])
    :: else
    fi;
    place[k] = DELIVERED
}

inline deliver_stash(c) { /* cqn_cq_pop_wcs(): everything that the stash has */
    d_step {
        for (i_ : 0 .. NWC - 1) {
            if
            :: home[i_] == c && place[i_] == STASHED -> deliver(i_)
            :: else
            fi
        };
        i_ = 0
    }
}

/* ---- arm, event, ack, poll ---- */

inline arm(c, solicited) { /* cqn_cq_arm() */
    BEFORE_VERB;
    d_step {
        any_ = !(solicited);
#ifndef MUTANT_solicited_replaces_any
        any_ = any_ || known(c) == ANY;
#endif
        device[c] = (any_ -> ANY : SOLICITED);
        armed[c] = (any_ -> ANY : SOLICITED);
        stale[c] = false;
        printf("arm %x %x %x 0\n", c, solicited, any_);
        arm_hook(c)
    }
}

inline count_event(c) {
    printf("event %x 0 0 0\n", c);
    unacked[c]++;
    armed[c] = UNARMED
}

inline read_event(c, found) { /* cqn_channel_read_event() */
    BEFORE_VERB;
    d_step {
        found = false;
        c = 0;
        do
        :: c < NCQ && !listed[c] -> c++
        :: else -> break
        od;
        if
        :: c < NCQ ->
            found = true;
            printf("late %x 0 0 0\n", c);
            prepaid[c]++;
            late[c]--;
            if
            :: late[c] == 0 -> listed[c] = false
            :: else
            fi
        :: else ->
            do
            :: !found && len(channel) > 0 ->
                channel ? c;
                if
                :: closed[c] -> late[c]++; printf("acked_at_once %x 0 0 0\n", c)
                :: else -> found = true; owed[c]++
                fi
            :: else -> break
            od
        fi;
        if
        :: found -> count_event(c)
        :: else -> c = 0
        fi
    }
}

inline ack(c, n) { /* cqn_cq_ack(), inside a d_step */
    i_ = (n < prepaid[c] -> n : prepaid[c]);
#ifdef MUTANT_late_event_acked_twice
    i_ = 0;
#endif
    printf("ack %x %x %x 0\n", c, n, i_);
    assert(owed[c] >= n - i_);
    owed[c] = owed[c] - (n - i_);
    prepaid[c] = (n < prepaid[c] -> prepaid[c] - n : 0);
    unacked[c] = unacked[c] - n
}

inline poll(c, more) { /* fetch_batch(): `more` if the batch was full */
    BEFORE_VERB;
    d_step {
        n_ = 0;
        kept_ = 0;
        i_ = 0;
        do
        :: i_ < NWC && n_ < BATCH ->
            if
            :: home[i_] == c && place[i_] == QUEUED ->
                n_++;
                route(i_, c);
                if
                :: place[i_] == STASHED -> kept_++
                :: else -> printf("route %x 1 0 0\n", c)
                fi
            :: else
            fi;
            i_++
        :: else -> break
        od;
        more = (n_ == BATCH);
        printf("poll %x %x %x %x\n", c, BATCH, n_, kept_);
        poll_hook(c, n_)
    }
}

inline fetch(c, more) { /* cqn_cq_fetch(): until the stash has something, or the device nothing */
    do
    :: stash_is_empty(c) ->
        poll(c, more);
        if
        :: more
        :: else -> break
        fi
    :: else -> break
    od
}

/* ---- the device, and what takes its events away ---- */

inline complete(k) {
    d_step {
        place[k] == POSTED -> place[k] = QUEUED;
        if
        :: device[home[k]] == ANY || (device[home[k]] == SOLICITED && urgent[k]) ->
            device[home[k]] = UNARMED;
            channel ! home[k]
        :: else
        fi
    }
}

active proctype Device() {
    do
    :: complete(0)
    :: complete(1)
    :: complete(2)
    :: pause ! 0
    od
}

byte stolen; /* 1 + the CQ of an event that is lost */
#ifdef THIEF
active proctype Thief() { /* another program reads an event from the channel's descriptor */
    byte c;
    d_step { channel ? c -> stolen = c + 1; c = 0 }
}
#endif
