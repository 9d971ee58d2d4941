/* SPDX-License-Identifier: MIT */
/*
 * The model of tasks that await completions: csrc/await, in one event loop, over the CQs and the
 * channel of cq.pml. Each CQ has an AsyncCQ. A foreign thread polls, arms, acknowledges, resizes
 * and closes meanwhile; tasks are cancelled at any moment, and may then call again.
 *
 * The names are those of the C core. Configurations (test_model.py) bound what happens: KINDS, CQS,
 * ACTS, CANCELS, TIMERS, and TRIO, whose wakeups are Python code that releases the lock.
 */

#include "cq.pml"

#define NT 2

/* what a task awaits; the completion of task t has the number want[t] */
#define WAIT_SOLICITED 0
#define WAIT 1
#define CLAIM 2
#define RECV 3
#define SEND 4
#define is_wait(t) (kind[t] <= WAIT)
#define is_operation(t) (kind[t] >= RECV)

/* the state of its awaitable: WAITING is POSTED for an operation */
#define NEW 0
#define WAITING 1
#define COMPLETE 2
#define FAILED 3
#define DONE 4

/* how far its waking is */
#define UNWOKEN 0
#define LISTED 1
#define WOKEN 2
#define SCHEDULED 3
#define SCHEDULED_LISTED 4

/* its wakeup: none, not done, done */
#define NO_WAKEUP 0
#define OPEN 1
#define CALLED 2

byte kind[NT], cq[NT], want[NT], state[NT], wake[NT], wakeup[NT];
bool stepping[NT];  /* its code runs, and will see a change of its state */
bool asleep[NT];
bool slept[NT], paused[NT]; /* at least once; or yielded */
bool polled[NT];    /* for this awaitable since the latest arm, until the CQ was empty */
bool cancelled[NT];
bool abandoned[NT]; /* the task gave up, the device has its work request */
bool again[NT];     /* calls once more after it was cancelled */
byte dispatched[NCQ];
bool shut[NCQ];    /* the AsyncCQ is closed */
bool later[NCQ];   /* polls in the next iteration */
byte left[NCQ];    /* whether it owns the WR queue of a destroyed QP, that of completion 2 */
#define OWNED 1
#define GONE 2
bool in_line[NT], behind[NT];  /* in wait(); behind the other one, on the same CQ */
bool second[NT];               /* to be woken after the other one */
bool in_turn[NT], after[NT];   /* woken from its sleep; after the other one: for a property */
chan ready = [6] of { byte, byte }; /* callbacks of the event loop */
#define STEP 0
#define POLL_AGAIN 1
#define WAKE 2
byte cancels = CANCELS, timers = TIMERS, acts = ACTS;
hidden byte t_, u_;

#define ACK_BATCH 2
#define BATCHES 2

#ifdef MUTANT_resumed_overtakes
#define OVERTAKES true
#else
#define OVERTAKES false
#endif

#ifdef MUTANT_poll_before_the_arm_counts
#define OLD_POLL_COUNTS true
#else
#define OLD_POLL_COUNTS false
#endif
#ifdef MUTANT_full_poll_counts /* although the device may have more */
#define FULL_POLL_COUNTS true
#else
#define FULL_POLL_COUNTS false
#endif

/* ---- awaitables ---- */

/* in what is printed: the numbers of the core */
#define awaitable(t) (16 + (t))
#define core_kind(t) (is_wait(t) -> 3 + 256 * (kind[t] == WAIT_SOLICITED) : \
                      (kind[t] == CLAIM -> 2 : 4 - kind[t]))
#define core_state(t, s) (s == WAITING && is_operation(t) -> 2 : s + 2 * (s > NEW))

inline becomes(t, new) {
    state[t] = new;
    printf("state %x %x %x %x\n", awaitable(t), cq[t], core_state(t, new), core_kind(t));
    printf("pending %x %x %x 0\n", awaitable(t), cq[t], new == WAITING)
}

#define wants(t, c) (cq[t] == c && state[t] == WAITING && !abandoned[t])
#define is_awaited(c) ((cq[0] == c && state[0] == WAITING) || (cq[1] == c && state[1] == WAITING))
#define is_any(t, c) (cq[t] == c && state[t] == WAITING && kind[t] != WAIT_SOLICITED)
#define only_solicited(c) (!is_any(0, c) && !is_any(1, c))
#define is_scheduled(c) \
    ((cq[0] == c && wake[0] >= SCHEDULED) || (cq[1] == c && wake[1] >= SCHEDULED))
#define has_woken(c) ((cq[0] == c && is_listed(0)) || (cq[1] == c && is_listed(1)))
#define is_listed(t) (wake[t] == LISTED || wake[t] == SCHEDULED_LISTED)
#define other(t) (1 - (t))
#define is_first(t) (in_line[t] && !behind[t])
#define has_line(c) ((cq[0] == c && in_line[0]) || (cq[1] == c && in_line[1]))
#define is_ready(t) (state[t] == COMPLETE || state[t] == FAILED || \
                     (is_wait(t) && state[t] == WAITING && is_first(t) && !stash_is_empty(cq[t])))

inline wake_later(t) {
    second[t] = (is_listed(t) -> second[t] : is_listed(other(t)));
    wake[t] = (wake[t] >= SCHEDULED -> SCHEDULED_LISTED : LISTED)
}

inline join_line(t) {
    in_line[t] = true;
    behind[t] = in_line[other(t)] && cq[0] == cq[1]
}

inline leave_line(t) {
    in_line[t] = false;
    behind[0] = false;
    behind[1] = false
}

inline resolve(t, new) { /* its step sees it, or it is listed to be woken */
    becomes(t, new);
    leave_line(t);
    if
    :: !stepping[t] -> wake_later(t)
    :: else
    fi
}

inline claim(k) { /* to the first completion() of its wr_id */
    u_ = 0;
    do
    :: u_ < NT && place[k] == STASHED ->
        if
        :: kind[u_] == CLAIM && want[u_] == k && state[u_] == WAITING && cq[u_] == home[k] ->
            place[k] = TAKEN;
            resolve(u_, COMPLETE)
        :: else
        fi;
        u_++
    :: else -> break
    od
}

inline route(k, c) { /* route_one(): to its operation, to a claim, or into the stash */
    place[k] = STASHED;
    assert(k != 2 || left[c] != GONE); /* else its user's wr_id is not known any more */
    if
    :: k < NT && is_operation(k) && state[k] == WAITING ->
        if
        :: !abandoned[k] -> place[k] = TAKEN; resolve(k, COMPLETE)
        :: abandoned[k] && kind[k] == SEND -> place[k] = DROPPED; becomes(k, DONE)
        :: else -> becomes(k, DONE); claim(k)
        fi
    :: else -> claim(k)
    fi
}

/* ---- polling, arming, waking: engine.c ---- */

inline arm_hook(c) { /* a poll before the latest arming does not count */
    polled[0] = polled[0] && (cq[0] != c || OLD_POLL_COUNTS);
    polled[1] = polled[1] && (cq[1] != c || OLD_POLL_COUNTS)
}

inline poll_hook(c, got) { /* drop_orphans() */
    if
#ifdef MUTANT_left_queue_dropped_early
    :: left[c] == OWNED -> left[c] = GONE
#else
    :: left[c] == OWNED && got == 0 -> left[c] = GONE
#endif
    :: else
    fi
}

inline wake_first(c) {
    d_step {
        for (t_ : 0 .. NT - 1) {
            if
            :: cq[t_] == c && is_first(t_) && wake[t_] == UNWOKEN && !stash_is_empty(c) ->
                wake_later(t_)
            :: else
            fi
        };
        t_ = 0
    }
}

inline comes_next(t) {
    in_turn[t] = true;
    after[t] = in_turn[other(t)] && cq[0] == cq[1]
}

inline wake_task(t) { /* passes it to the loop */
    wake[t] = (wakeup[t] != NO_WAKEUP || wake[t] == SCHEDULED_LISTED -> SCHEDULED : WOKEN);
    if
    :: wakeup[t] == OPEN ->
        wakeup[t] = CALLED;
        if
        :: asleep[t] ->
            printf("wake %x %x 0 0\n", awaitable(t), cq[t]);
            comes_next(t);
            ready ! STEP, t
        :: else
        fi
    :: else
    fi
}

inline wake_listed(c) {
    d_step {
        u_ = (second[0] -> 1 : 0);
        for (t_ : 0 .. NT - 1) {
            if
            :: cq[u_] == c && is_listed(u_) -> second[u_] = false; wake_task(u_)
            :: else
            fi;
            u_ = other(u_)
        };
        t_ = 0
    }
}

#define has_no_sleeper(c) (!is_awaited(c) || (has_line(c) && !stash_is_empty(c)))

inline prepare(c, has_polled) { /* poll_until_safe(), then wake_first() */
    has_look = has_polled;
    rounds = 0;
    do
    :: has_no_sleeper(c) -> break
    :: else ->
        more = false;
        if
        :: has_look -> has_look = false
        :: else -> poll(c, more)
        fi;
        if
        :: has_no_sleeper(c) || (!more && is_armed(c, only_solicited(c))) -> break
        :: else
        fi;
        if
        :: more
        :: else -> arm(c, only_solicited(c))
#ifdef MUTANT_no_poll_after_the_arm
            ; break
#endif
        fi;
        WINDOW;
        rounds++;
        if
        :: rounds == BATCHES ->
            if
            :: !later[c] ->
                later[c] = true;
                printf("later %x 0 1 0\n", c);
                ready ! POLL_AGAIN, c
            :: else
            fi;
            break
        :: else
        fi
    od;
    wake_first(c)
}

inline wake_in_loop(c) { /* from another thread */
    if
    :: has_woken(c) -> ready ! WAKE, c
    :: else
    fi
}

/* ---- the steps of a task, in the thread of the loop: step.c, calls.c ---- */

inline ends(t) { /* its awaitable is gone */
    wake[t] = UNWOKEN;
    wakeup[t] = NO_WAKEUP;
    stepping[t] = false; asleep[t] = false; slept[t] = false; paused[t] = false;
    polled[t] = false; cancelled[t] = false
}

inline goes_on(t) {
    d_step {
        assert(!in_turn[t] || !after[t] || cancelled[t]); /* nobody is overtaken */
        in_turn[t] = false;
        after[0] = false;
        after[1] = false;
        wake[t] = (is_listed(t) -> LISTED : UNWOKEN);
        wakeup[t] = NO_WAKEUP;
        printf("goes_on %x %x 0 0\n", awaitable(t), cq[t]);
        asleep[t] = false;
        stepping[t] = !cancelled[t]
    }
}

inline begin(t, c) { /* the first step: polls once, and joins; or ends */
    if
    :: shut[c] -> becomes(t, DONE)
    :: !shut[c] && is_wait(t) ->
        if
        :: !has_line(c) && stash_is_empty(c) ->
            fetch(c, more);
            polled[t] = !more || FULL_POLL_COUNTS;
            WINDOW
        :: else
        fi;
        d_step {
            if
            :: shut[c] -> becomes(t, DONE)
            :: else -> becomes(t, WAITING); join_line(t)
            fi
        }
    :: !shut[c] && kind[t] == CLAIM ->
        poll(c, more);
        polled[t] = !more;
        WINDOW;
        d_step {
            if
            :: shut[c] -> becomes(t, DONE)
            :: !shut[c] && place[want[t]] == STASHED ->
                printf("pop %x 1 0 0\n", c);
                place[want[t]] = TAKEN; becomes(t, COMPLETE)
            :: else -> becomes(t, WAITING)
            fi
        }
    :: !shut[c] && is_operation(t) ->
        WINDOW;
        d_step {
            if
            :: shut[c] -> becomes(t, DONE)
            :: !shut[c] && abandoned[t] && state[t] == WAITING -> /* takes it over */
                abandoned[t] = false
            :: !shut[c] && abandoned[t] && place[t] == STASHED ->
                printf("pop %x 1 0 0\n", c);
                place[t] = TAKEN; becomes(t, COMPLETE)
            :: !shut[c] && !abandoned[t] -> place[t] = POSTED; becomes(t, WAITING); fresh = false
            :: else -> becomes(t, DONE) /* its message went elsewhere */
            fi;
            abandoned[t] = false
        };
        if
        :: state[t] == WAITING -> poll(c, more); polled[t] = !more; WINDOW
        :: else
        fi
    fi
}

inline take_one(c) { /* the first completion of the stash */
    i_ = 0;
    do
    :: home[i_] == c && place[i_] == STASHED -> break
    :: else -> i_++
    od;
    deliver(i_)
}

inline update(c) { /* in the loop's thread */
    if
    :: !shut[c] && is_awaited(c) -> prepare(c, false)
    :: else
    fi;
    wake_listed(c)
}

inline run_on(t, c) { /* run(): until it sleeps or has its result */
    do
    :: state[t] == DONE -> break
    :: else ->
        wake_listed(c);
        if
        :: is_ready(t) && !slept[t] && !paused[t] && is_scheduled(c) -> /* yield_to_loop() */
            d_step { paused[t] = true; wakeup[t] = CALLED; asleep[t] = true; stepping[t] = false };
            ready ! STEP, t;
            break
        :: is_ready(t) && (slept[t] || paused[t] || !is_scheduled(c)) ->
            if
            :: is_wait(t) && state[t] == WAITING ->
                WINDOW;
                d_step {
                    assert(!stash_is_empty(c) || shut[c]);
                    if
                    :: any_in(c, STASHED) -> take_one(c)
                    :: else
                    fi;
                    leave_line(t);
                    becomes(t, DONE)
                };
#ifndef MUTANT_what_is_left_wakes_nobody
                update(c)
#endif
            :: state[t] == COMPLETE -> d_step { deliver(want[t]); becomes(t, DONE) }
            :: state[t] == FAILED -> becomes(t, DONE)
            fi;
            break
        :: else ->
            wakeup[t] = OPEN;
#ifdef TRIO
            WINDOW;
#endif
            if
            :: polled[t] -> polled[t] = false; prepare(c, true)
            :: else -> prepare(c, false)
            fi;
            wake_listed(c);
            WINDOW;
            if
            :: is_ready(t) -> wakeup[t] = NO_WAKEUP
            :: else ->
                slept[t] = true;
#ifdef TRIO
#ifndef MUTANT_falling_asleep_counts_as_running
                stepping[t] = false;
#endif
                WINDOW;
#endif
                d_step {
                    stepping[t] = false;
                    asleep[t] = true;
                    printf("sleep %x %x 1 0\n", awaitable(t), c)
                };
                if
                :: wakeup[t] == CALLED -> ready ! STEP, t
                :: else
                fi;
                break
            fi
        fi
    od
}

inline give_up(t, c) {
    d_step {
        printf("cancel %x %x %x 0\n", awaitable(t), c, core_state(t, state[t]));
#ifndef MUTANT_one_who_gives_up_trusts_the_record
        if
        :: slept[t] -> armed[c] = UNARMED; printf("disarm %x 0 0 0\n", c)
        :: else
        fi;
#endif
        leave_line(t);
        if
        :: state[t] == COMPLETE ->
            place[want[t]] = STASHED;
            if
            :: kind[t] == SEND -> place[want[t]] = DROPPED
            :: else ->
                claim(want[t]);
                abandoned[t] = (kind[t] == RECV);
                if
                :: place[want[t]] == STASHED -> printf("put_back %x 1 0 0\n", c)
                :: else
                fi
            fi;
#ifdef MUTANT_cancelled_claim_drops_its_completion
            place[want[t]] = (kind[t] == CLAIM -> LOST : place[want[t]]);
#endif
            becomes(t, DONE)
        :: state[t] == WAITING && is_operation(t) -> abandoned[t] = true
        :: else -> becomes(t, DONE)
        fi;
        ends(t)
    };
    WINDOW;
#ifndef MUTANT_one_who_gives_up_wakes_nobody
    update(c)
#endif
}

/* ---- the event loop ---- */

inline ack_dispatched(c) { /* inside a d_step */
#ifdef MUTANT_engine_acks_too_many
    n_ = dispatched[c];
#else
    n_ = (dispatched[c] < unacked[c] -> dispatched[c] : unacked[c]);
#endif
    dispatched[c] = 0;
    ack(c, n_)
}

inline resume_first(c) { /* the first one that is listed; in this iteration of the loop it may */
    first = NT;
    if
    :: has_woken(c) && (OVERTAKES || !is_scheduled(c)) ->
        d_step {
            first = (cq[0] == c && is_listed(0) && !(cq[1] == c && second[0]) -> 0 : 1);
            wake[first] = WOKEN;
            second[other(first)] = false;
            if
            :: asleep[first] && wakeup[first] == OPEN ->
                printf("wake %x %x 1 0\n", awaitable(first), c);
                comes_next(first)
            :: else -> first = NT /* it goes on soon anyway, for it was cancelled */
            fi
        }
    :: true /* the budget of the iteration is spent, for example */
    fi
}
active proctype Loop() {
    byte t, c, what, first = NT, rounds;
    bool found, more, has_look;
    atomic {
    goto done;

rests:
    UNLOCK;
done:
    t = 0; c = 0; what = 0; found = false; more = false; has_look = false; rounds = 0;
    pause ? 0;
    if
    :: !gil && nempty(ready) ->
        gil = true; fresh = true;
        ready ? what, c;
        if
        :: what == STEP -> t = c; c = cq[t]; goto step
        :: what == POLL_AGAIN ->
            later[c] = false;
            printf("later %x 0 0 0\n", c);
            if
            :: !shut[c] -> prepare(c, false)
            :: else
            fi;
            wake_listed(c)
        :: what == WAKE -> wake_listed(c)
        fi;
        goto rests
    :: !gil && nempty(channel) ->
        gil = true; fresh = true;
        read_event(c, found); /* _on_event(), then cqn_engine_dispatch() */
        if
        :: found && !shut[c] ->
            d_step {
                printf("dispatched %x 0 0 0\n", c);
                dispatched[c]++;
                if
                :: dispatched[c] == ACK_BATCH -> ack_dispatched(c)
                :: else
                fi
            };
            prepare(c, false);
            resume_first(c);
            wake_listed(c);
            if
            :: first < NT -> t = first; first = NT; goto step
            :: else
            fi
        :: else
        fi;
        goto rests
    :: cancels > 0 && asleep[0] && !cancelled[0] -> t = 0; cancels--; goto cancel
    :: cancels > 0 && asleep[1] && !cancelled[1] -> t = 1; cancels--; goto cancel
    fi;

step: /* run_step(): of task t, with the lock */
        c = cq[t];
        goes_on(t);
        if
        :: cancelled[t] ->
            cancelled[t] = false;
            give_up(t, c);
            if
            :: kind[t] != SEND && again[t] -> /* it calls once more */
                again[t] = false;
                state[t] = (abandoned[t] && state[t] == WAITING -> WAITING : NEW);
                ready ! STEP, t
            :: else
            fi;
            goto rests
        :: !cancelled[t] && (state[t] == NEW || abandoned[t]) ->
            if
            :: state[t] == NEW ->
                printf("new_awaitable %x %x 0 %x\n", awaitable(t), c, core_kind(t))
            :: else
            fi;
            begin(t, c)
        :: else
        fi;
        run_on(t, c);
        if
        :: state[t] == DONE -> d_step { ends(t) }
        :: else
        fi;
        goto rests

cancel: /* task.cancel(), by code of the loop */
        cancelled[t] = true;
        if
        :: wakeup[t] == OPEN -> wakeup[t] = CALLED; ready ! STEP, t
        :: else
        fi;
        goto done
    }
}

/* ---- a second thread ---- */

inline close_engine(c) { /* engine_shut(); the Python code after it wakes the tasks */
    d_step {
        shut[c] = true;
        ack_dispatched(c);
        for (t_ : 0 .. NT - 1) {
            if
            :: wants(t_, c) -> resolve(t_, FAILED)
            :: cq[t_] == c && state[t_] == WAITING && abandoned[t_] -> becomes(t_, DONE)
            :: else
            fi
        };
        t_ = 0
    }
#ifndef MUTANT_close_wakes_nobody
    ;
    WINDOW;
    wake_in_loop(c)
#endif
}

active proctype Foreign() {
    byte c, rounds;
    bool more, has_look;
    atomic {
    do
    :: acts > 0 ->
        pause ? 0;
        if
        :: c = 0
        :: c = 1
        fi;
        LOCK;
        acts--;
        if
        :: ACT_POLL && !shut[c] -> /* cqn_engine_poll() */
            if
            :: !has_line(c) && !stash_is_empty(c)
            :: else -> fetch(c, more); WINDOW
            fi;
            wake_first(c);
            if
            :: !has_line(c) || shut[c] -> deliver_stash(c)
            :: else
            fi;
            wake_in_loop(c)
        :: ACT_POLL && shut[c] -> fetch(c, more); deliver_stash(c)
        :: ACT_ARM -> arm(c, false)
        :: ACT_ARM -> arm(c, true)
        :: ACT_ACK && unacked[c] > 0 -> d_step { ack(c, unacked[c]) }
        :: ACT_RESIZE ->
            UNLOCK;
            pause ? 0;
            device[c] = UNARMED;
            pause ? 0;
            LOCK;
            if
            :: armed[c] != UNARMED ->
                armed[c] = UNARMED;
                printf("disarm %x 0 0 0\n", c);
#ifndef MUTANT_resize_leaves_it_unarmed
                if
                :: !shut[c] && is_awaited(c) -> prepare(c, false)
                :: else
                fi;
                wake_in_loop(c)
#endif
            :: else
            fi
        :: ACT_CLOSE && !shut[c] -> close_engine(c)
        :: ACT_QP && home[2] == c && left[c] == 0 -> /* its QP is destroyed, unpolled */
            pause ? 0;
            d_step {
                left[c] = OWNED;
                place[2] = (place[2] == POSTED -> DROPPED : place[2])
            }
        :: else
        fi;
        UNLOCK;
        c = 0; rounds = 0; more = false; has_look = false
    od
    }
}

/* ---- what must hold when nothing is left to happen ---- */

#define is_asleep(t) (asleep[t] && wakeup[t] == OPEN)
#define waits_for_stolen(t) (is_asleep(t) && stolen == cq[t] + 1)
inline fire_timers() { /* of the tasks that sleep, as with wait_for() */
    d_step {
        timers--;
        for (t_ : 0 .. NT - 1) {
            if
            :: is_asleep(t_) ->
                cancelled[t_] = true;
                again[t_] = true;
                wakeup[t_] = CALLED;
                ready ! STEP, t_
            :: else
            fi
        };
        t_ = 0
    }
}

#define has_something(t) \
    (is_wait(t) -> any_in(cq[t], STASHED) || has_news(0, t) || has_news(1, t) || has_news(2, t) \
                 : place[want[t]] == STASHED || place[want[t]] == QUEUED)
#define has_news(k, t) (home[k] == cq[t] && place[k] == QUEUED && (kind[t] == WAIT || urgent[k]))

inline judge() {
    d_step {
        for (t_ : 0 .. NT - 1) {
            assert(state[t_] == DONE || (state[t_] == WAITING && !shut[cq[t_]]) || abandoned[t_]);
            assert(state[t_] != WAITING || abandoned[t_] || !(!is_wait(t_) || is_first(t_)) ||
                   !has_something(t_)) /* nobody sleeps for ever while something for it is there */
        }
        for (i_ : 0 .. NWC - 1) {
            assert(place[i_] != LOST && place[i_] != TAKEN && place[i_] != POSTED)
        }
        for (i_ : 0 .. NCQ - 1) {
            assert(owed[i_] == unacked[i_] - prepaid[i_]) /* so that closing never hangs */
        }
    }
}

active proctype Monitor() {
    do
    :: atomic { timers > 0 && (waits_for_stolen(0) || waits_for_stolen(1)) -> fire_timers() }
    :: timeout ->
        if
        :: timers > 0 -> fire_timers()
        :: else -> judge(); break
        fi
    od
}

init {
    byte k;
    atomic {
        select (k : KIND_0);
        kind[0] = k;
        select (k : KIND_1);
        kind[1] = k;
        select (k : 0 .. CQS - 1);
        cq[1] = k;
        select (k : 0 .. CQS - 1);
        home[1] = cq[1];
        home[2] = k;
        want[1] = 1;
        if
        :: kind[1] == CLAIM && cq[1] == 0 -> want[1] = 0 /* of the wr_id that the other awaits */
        :: true
        fi;
        if
        :: CANCELS > 0 -> again[0] = true
        :: true
        fi;
        urgent[1] = true;
        if
        :: true -> urgent[0] = true
        :: kind[0] == WAIT_SOLICITED || kind[1] == WAIT_SOLICITED
        fi;
        if
        :: !is_operation(0) -> place[0] = POSTED
        :: else
        fi;
        if
        :: !is_operation(1) -> place[1] = POSTED
        :: else
        fi;
        place[2] = POSTED;
        printf("new_cq 0 %x 0 0\nnew_cq 1 %x 0 0\n", CHANNEL, CHANNEL);
        printf("new_engine 0 0 0 0\nnew_engine 1 0 0 0\n");
        ready ! STEP, 0;
        ready ! STEP, 1;
        gil = false
    }
}
