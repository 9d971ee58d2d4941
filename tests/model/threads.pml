/* SPDX-License-Identifier: MIT */
/*
 * The model of threads that sleep in get_event(): csrc/base/wait_queue.c and csrc/verbs/channel.c,
 * over the CQs and the channel of cq.pml. Two threads serve both CQs: they arm, poll until a CQ is
 * empty, and sleep. Meanwhile another thread interrupts, resizes and closes, and signals arrive.
 *
 * The names are those of the C core. Configurations (test_model.py) bound what happens: ACTS, which
 * ones, SIGNALS and TIMERS.
 */

#include "cq.pml"

#define NT 2
#define other(t) (1 - (t))

/* the record of a waiter */
bool in_queue[NT], asleep[NT], signalled[NT], must_check[NT], interrupted[NT];
bool readable[NT];  /* its eventfd */
bool signal[NT];    /* one has arrived for it */
bool expired[NT];   /* its deadline has passed */
byte poller;        /* t + 1; 0: none */
bool interrupt_next, interrupts, raised;
bool quits;         /* the second thread serves one event, and then none */
bool timed_out;     /* a wait, after an event was lost */
byte acts = ACTS, signals = SIGNALS, timers = TIMERS;

#define is_served(k) (place[k] == DELIVERED || place[k] == DROPPED)
#define all_is_served (is_served(0) && is_served(1) && is_served(2))

inline arm_hook(c) { skip }
inline poll_hook(c, got) { skip }
inline route(k, c) { place[k] = STASHED }

/* ---- the wait queue ---- */

#define QUEUE 8 /* in what is printed */

inline signal_waiter(t) {
    signalled[t] = true;
    readable[t] = true
}

inline wake_queue() { /* cqn_wait_queue_wake() */
    d_step {
        for (i_ : 0 .. NT - 1) {
            if
            :: asleep[i_] && !must_check[i_] -> must_check[i_] = true; signal_waiter(i_)
            :: else
            fi
        };
        i_ = 0
    }
}

inline pass_on_polling(t) { /* from t to the first sleeper */
    d_step {
        if
        :: poller == 0 && asleep[other(t)] ->
            poller = other(t) + 1;
            printf("poller %x %x 0 0\n", QUEUE, poller);
            signal_waiter(other(t))
        :: else
        fi
    }
}

inline sleep_until(t) { /* ppoll(2), without the lock */
    do
    :: true ->
        polls = (poller == t + 1);
        pause ? 0;
        if
        :: readable[t] -> woken = true
        :: polls && len(channel) > 0 -> woken = true
        :: expired[t] -> woken = false
        :: signal[t] -> woken = false
        fi;
        if
        :: woken && !polls ->
#ifdef MUTANT_signal_cleared_last
            check = must_check[t];
            pause ? 0;
            readable[t] = false;
#else
            readable[t] = false;
            pause ? 0;
            check = must_check[t];
#endif
            if
            :: check -> break
            :: else
            fi
        :: else -> break
        fi
    od
}

inline sleep_once(t) {
    d_step {
        asleep[t] = true;
        if
        :: poller == 0 -> poller = t + 1
        :: else
        fi;
        printf("waits %x %x %x 0\n", QUEUE, t + 1, poller == t + 1)
    };
    UNLOCK;
    sleep_until(t);
    LOCK;
    d_step {
        poller = (poller == t + 1 -> 0 : poller);
        asleep[t] = false;
        printf("woke %x %x 0 0\n", QUEUE, t + 1);
        if
        :: signalled[t] -> signalled[t] = false; must_check[t] = false; readable[t] = false
        :: else
        fi
    };
    if
    :: !woken && signal[t] -> /* the handler waits for what the other thread does */
        signal[t] = false;
#ifndef MUTANT_handler_keeps_the_role
        pass_on_polling(t);
#endif
        printf("handler %x %x 0 0\n", QUEUE, t + 1);
        UNLOCK;
        all_is_served;
        LOCK
    :: else
    fi
}

inline leave_queue(t) {
    in_queue[t] = false;
#ifndef MUTANT_interrupt_leaves_with_its_waiter
    interrupt_next = interrupt_next || interrupted[t];
#endif
    interrupted[t] = false;
#ifndef MUTANT_poller_leaves_without_a_successor
    pass_on_polling(t);
#endif
    printf("leaves %x %x 0 0\n", QUEUE, t + 1)
}

#ifdef MUTANT_late_event_is_not_looked_for
#define QUIET true
#else
#define QUIET (!listed[0] && !listed[1])
#endif

inline get_event(t, c) { /* `found`: the event of c; else a timeout or an interrupt has ended it */
    if
    :: interrupt_next -> interrupt_next = false; raised = true
    :: else ->
        if
        :: read_event(c, found)
        :: QUIET /* after a wait that slept, it sleeps first */
        fi;
        if
        :: found
        :: else ->
            in_queue[t] = true;
            do
            :: interrupted[t] -> interrupted[t] = false; raised = true; break
            :: !interrupted[t] && late_ -> /* TimeoutError */
                stale[0] = true; stale[1] = true;
                timed_out = stolen > 0;
                printf("timed_out %x 0 0 0\n", CHANNEL);
                break
            :: else ->
                sleep_once(t);
                late_ = expired[t];
                read_event(c, found);
                if
                :: found -> break
                :: else
                fi
            od;
            woken = false; check = false; polls = false; late_ = false; expired[t] = false;
            leave_queue(t)
        fi
    fi
}

/* ---- the program ---- */

inline serve(c) { /* `while not cq.arm_if_empty(): cq.poll()` */
    do
    :: true ->
        LOCK;
        if
        :: closed[c] -> safe = true
        :: else ->
            fetch(c, more);
            if
            :: stash_is_empty(c) && !is_armed(c, false) ->
                arm(c, false);
#ifndef MUTANT_threads_do_not_poll_after_the_arm
                fetch(c, more)
#endif
            :: else
            fi;
            safe = stash_is_empty(c)
        fi;
        UNLOCK;
        pause ? 0;
        if
        :: safe -> more = false; safe = false; break
        :: else ->
            LOCK;
            fetch(c, more);
            deliver_stash(c);
            UNLOCK;
            pause ? 0
        fi
    od
}

proctype Thread(byte t) {
    byte c;
    bool found, more, safe, polls, woken, check, late_;
    atomic {
        do
        :: true -> /* arms both, at first and after a timeout */
            for (c : 0 .. NCQ - 1) {
                serve(c)
            }
            do
            :: true ->
                c = 0;
                LOCK;
                get_event(t, c);
                if
                :: found && unacked[c] > 0 -> d_step { ack(c, 1) } /* else close() has done it */
                :: else
                fi;
                UNLOCK;
                pause ? 0;
                if
                :: found -> found = false; serve(c); (t == 0 || !quits)
                :: else -> break
                fi
            od
        od
    }
}

/* ---- another thread, and signals ---- */

inline drain_events(c) { /* the kernel removes the unread events of a CQ */
    d_step {
        n_ = len(channel);
        do
        :: n_ > 0 ->
            channel ? i_;
            n_--;
            if
            :: i_ != c -> channel ! i_
            :: else
            fi
        :: else -> break
        od;
        for (i_ : 0 .. NWC - 1) {
            place[i_] = (home[i_] == c && place[i_] != DELIVERED -> DROPPED : place[i_])
        };
        i_ = 0
    }
}

inline add_late(c) {
    listed[c] = true;
    wake_queue()
}

#ifdef MUTANT_resize_raises_no_event
#define RAISES false
#else
#define RAISES true
#endif

active proctype Foreign() {
    byte c;
    bool more, safe;
    atomic {
        gil == false;
        do
        :: acts > 0 ->
            pause ? 0;
            acts--;
            if
            :: c = 0
            :: c = 1
            fi;
            LOCK;
            if
            :: ACT_INTERRUPT ->
                d_step {
                    interrupts = true;
                    raised = false;
                    interrupt_next = interrupt_next || (!in_queue[0] && !in_queue[1]);
                    interrupted[0] = in_queue[0];
                    interrupted[1] = in_queue[1]
                };
                wake_queue()
            :: ACT_RESIZE && !closed[c] ->
                UNLOCK;
                pause ? 0;
                device[c] = UNARMED;
                pause ? 0;
                LOCK;
                if
                :: armed[c] != UNARMED ->
                    armed[c] = UNARMED;
                    printf("disarm %x 0 0 0\n", c);
                    arm(c, false);
                    do
                    :: poll(c, more);
                        if
                        :: more
                        :: else -> break
                        fi
                    od;
                    if
                    :: !stash_is_empty(c) && RAISES ->
                        late[c]++;
                        printf("resized %x 1 0 0\n", c);
                        if
                        :: late[c] == 1 -> add_late(c)
                        :: else
                        fi
                    :: else -> printf("resized %x 0 0 0\n", c)
                    fi
                :: else
                fi
            :: ACT_CLOSE && !closed[c] ->
                d_step {
                    ack(c, unacked[c]);
                    listed[c] = false;
                    closed[c] = true;
                    printf("closing %x 1 0 0\n", c)
                };
                UNLOCK;
                pause ? 0;
                if
                :: drain_events(c);
                    pause ? 0;
                    owed[c] == 0;
                    LOCK
                :: true -> /* ibv_destroy_cq(3) fails, so the program goes on */
                    pause ? 0;
                    LOCK;
                    closed[c] = false;
                    printf("closing %x 0 0 0\n", c);
                    if
                    :: late[c] > 0 ->
                        armed[c] = UNARMED;
                        printf("disarm %x 0 0 0\n", c);
                        add_late(c)
                    :: else
                    fi;
                    UNLOCK;
                    pause ? 0;
                    serve(c);
                    LOCK
                fi
            :: else
            fi;
            UNLOCK;
            c = 0; more = false; safe = false
        od
    }
}

active proctype Signals() {
    do
    :: signals > 0 && asleep[0] -> signals--; signal[0] = true
    :: signals > 0 && asleep[1] -> signals--; signal[1] = true
    od
}

/* ---- what must hold when nothing is left to happen ---- */


inline fire_timers() {
    d_step {
        expired[0] = asleep[0];
        expired[1] = asleep[1]
    }
}

active proctype Monitor() {
    do
    :: atomic { stolen && timers > 0 && (asleep[0] || asleep[1]) -> timers--; fire_timers() }
    :: timeout ->
        if
        :: stolen && !timed_out -> fire_timers()
        :: else ->
            d_step {
                assert(all_is_served); /* nobody sleeps while something is in a CQ or its stash */
                assert(!gil && len(channel) == 0); /* and nobody closes for ever */
                assert(!interrupts || raised || interrupt_next);
                assert(owed[0] + prepaid[0] == unacked[0] && owed[1] + prepaid[1] == unacked[1])
            };
            break
        fi
    od
}

init {
    byte k;
    atomic {
        for (k : 0 .. NWC - 1) {
            place[k] = POSTED
        }
        select (k : 0 .. NCQ - 1);
        home[2] = k;
        home[1] = 1;
        k = 0;
        printf("new_cq 0 %x 0 0\nnew_cq 1 %x 0 0\n", CHANNEL, CHANNEL);
        if
        :: QUITS -> quits = true
        :: true
        fi;
        run Thread(0);
        run Thread(1);
        gil = false
    }
}
