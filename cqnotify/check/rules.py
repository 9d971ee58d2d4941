# SPDX-License-Identifier: MIT
"""The rules: what each finding of the observer means, why it is wrong, and what to do.

The observer (csrc/check) decides; it writes a rule's name and values into its log. How a text has
values is said in _wording.py. docs/check.md shows the texts; tests/check/rules_page.py makes its
section.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ._wording import fill, status_name

__all__ = ["ERROR", "INFORMATION", "RULES", "WARNING", "Rule", "Texts", "find_rule"]

ERROR, WARNING, INFORMATION = "error", "warning", "information"


Citations = tuple[tuple[str, str], ...]  # manual pages, and what they say


class Texts(NamedTuple):
    """Why something is wrong, what to do, and what the manual says."""

    why: str
    mend: str
    manual: Citations = ()

    def cite(self) -> list[str]:
        """Return a sentence for each citation."""
        return [f'{page}: "{text}"' for page, text in self.manual]


@dataclass(frozen=True)
class Rule:
    """A rule: its name in logs, and its texts."""

    name: str
    severity: str
    headline: str
    sentence: str
    """What happened, with the values of the finding."""
    texts: Texts
    variants: Mapping[str, Texts] = field(default_factory=dict)
    """By the value `armed`, or the name of a `status`: other texts."""
    also: tuple[tuple[str, str], ...] = ()
    """Values, and sentences that follow the first one if the value is there and not 0."""

    def say(self, values: Mapping[str, Any]) -> str:
        """Return what happened."""
        sentences = [self.sentence, *(text for name, text in self.also if values.get(name))]
        return fill(" ".join(sentences), values)

    def texts_for(self, values: Mapping[str, Any]) -> Texts:
        """Return why it is wrong and what to do, for a finding with these values."""
        for key in (values.get("armed"), status_name(values.get("status"))):
            if isinstance(key, str) and key in self.variants:
                return self.variants[key]
        return self.texts


ONE_SHOT: Final = (
    "ibv_req_notify_cq(3)",
    "The request for notification is 'one shot.' Only one completion event will be generated for "
    "each call to ibv_req_notify_cq().",
)
NEW_ENTRY: Final = (
    "ibv_req_notify_cq(3)",
    "Upon the addition of a new CQ entry (CQE) to cq, a completion event will be added to the "
    "completion channel associated with the CQ.",
)
SOLICITED: Final = (
    "ibv_req_notify_cq(3)",
    "If solicited_only is non-zero, an event is only generated for a new CQE with that is "
    "considered 'solicited.' A CQE is solicited if it is a receive completion for a message with "
    "the Solicited Event header bit set, or if the status is not successful.",
)
ACKNOWLEDGE: Final = (
    "ibv_get_cq_event(3)",
    "All completion events that ibv_get_cq_event() returns must be acknowledged using "
    "ibv_ack_cq_events(). To avoid races, destroying a CQ will wait for all completion events to "
    "be acknowledged; this guarantees a one-to-one correspondence between acks and successful "
    "gets.",
)
OVERRUN: Final = (
    "ibv_poll_cq(3)",
    "The user should consume work completions at a rate that prevents CQ overrun from occurrence. "
    "In case of a CQ overrun, the async event IBV_EVENT_CQ_ERR will be triggered, and the CQ "
    "cannot be used.",
)
BUFFERS: Final = (
    "ibv_post_send(3)",
    "The buffers used by a WR can only be safely reused after WR the request is fully executed and "
    "a work completion has been retrieved from the corresponding completion queue (CQ).",
)
FAILED_WC: Final = (
    "ibv_poll_cq(3)",
    "If the completion status is other than IBV_WC_SUCCESS, only the following attributes are "
    "valid: wr_id, status, qp_num, and vendor_err.",
)

ORDER: Final = (
    "The order that loses nothing: wait for the event, acknowledge it, arm the CQ, poll until "
    "ibv_poll_cq() returns 0, wait again."
)
AFTER_ARM: Final = Texts(
    "Only a completion that is added after the arm raises an event. One that is added between the "
    "last poll and the arm raises none: it stays in the CQ until somebody polls.",
    "After ibv_req_notify_cq(), poll once more. If that finds a completion, handle it and begin "
    "again; sleep only if it finds none. " + ORDER,
    (NEW_ENTRY,),
)
ARM_AGAIN: Final = Texts(
    "An arm is used up by the event that it raises. Until the CQ is armed again, completions raise "
    "no event.",
    "Call ibv_req_notify_cq() after each event, before the last poll. " + ORDER,
    (ONE_SHOT,),
)
FOR_SOLICITED: Final = Texts(
    "An arm for solicited completions raises an event for receives of solicited messages and for "
    "failures. All other completions, among them those of successful sends, raise none.",
    "Arm with solicited_only = 0, or let the peer set IBV_SEND_SOLICITED on the message that this "
    "thread waits for.",
    (SOLICITED,),
)
BY_ARMED: Final = {"before": AFTER_ARM, "no": ARM_AGAIN, "solicited": FOR_SOLICITED}

ENTRIES: Final = (
    "Create the CQ with an entry for every work request that may be outstanding: the max_send_wr "
    "and max_recv_wr of all its QPs, added up. Or post no more than the CQ has entries for before "
    "you poll."
)

_RULES: Final = (
    Rule(
        "lost-wakeup",
        ERROR,
        "lost wake-up: a thread sleeps although completions wait",
        "{thread} sleeps in {call_text} on channel {channel}. No event is on its way, but {cq:CQ} "
        "holds {completions:n completion} that nobody polls{armed_text}.",
        AFTER_ARM,
        variants=BY_ARMED,
        also=(("arms", "{cq:CQ} so far: {arms:n arm}, {events:n event}, {polls:n poll}."),),
    ),
    Rule(
        "nothing-armed",
        ERROR,
        "nothing can wake it: a thread sleeps and no CQ is armed",
        "{thread} sleeps in {call_text} on channel {channel}, with {outstanding:n work request} "
        "outstanding. No event is unread, and no CQ of the channel ({cqs:n CQ}) is armed.",
        Texts(
            "Only a CQ that is armed raises an event, and each arm raises one. So nothing that "
            "completes now can wake this thread.",
            "Call ibv_req_notify_cq() before the wait, then poll until ibv_poll_cq() returns 0. "
            + ORDER,
            (ONE_SHOT,),
        ),
    ),
    Rule(
        "over-ack",
        ERROR,
        "more events acknowledged than received",
        "ibv_ack_cq_events() has acknowledged {acked:n event} of {cq:CQ}, and "
        "ibv_get_cq_event() has returned {events} of it.",
        Texts(
            "ibv_destroy_cq() waits until both numbers are equal. If more were acknowledged they "
            "never are, and it hangs.",
            "Count the events that ibv_get_cq_event() returns for each CQ, and acknowledge that "
            "number, once.",
            (ACKNOWLEDGE,),
        ),
    ),
    Rule(
        "ack-on-wrong-cq",
        ERROR,
        "events acknowledged on another CQ than they came from",
        "ibv_ack_cq_events() has acknowledged {acked:n event} of {cq:CQ}, and "
        "ibv_get_cq_event() has returned {events} of it. Meanwhile {unacked:n event} of "
        "{other:CQ}, on the same channel, {unacked:were} not acknowledged.",
        Texts(
            "A channel delivers the events of all its CQs. Acknowledged on the wrong CQ, they are "
            "missing on the right one: ibv_destroy_cq() will hang on both.",
            "Acknowledge on the CQ that ibv_get_cq_event() stored through its second argument, "
            "not on the one that you expected there.",
            (ACKNOWLEDGE,),
        ),
    ),
    Rule(
        "destroy-hangs",
        ERROR,
        "ibv_destroy_cq() hangs: events were not acknowledged",
        "ibv_destroy_cq() of {cq:CQ} waits for acknowledgements: ibv_get_cq_event() returned "
        "{events:n event}, {acked} of them acknowledged.",
        Texts(
            "The call returns when as many events were acknowledged as ibv_get_cq_event() "
            "returned.",
            "Call ibv_ack_cq_events() for every event that ibv_get_cq_event() returned, with the "
            "CQ that it returned. A loop that ends after an event must acknowledge that one, too.",
            (ACKNOWLEDGE,),
        ),
        also=(("other", "Too many were acknowledged on {other:CQ}: probably those of this CQ."),),
    ),
    Rule(
        "cq-overflow",
        ERROR,
        "a CQ overflowed",
        "{cq:CQ} overflowed: the device reported IBV_EVENT_CQ_ERR. It has {entries:n entry}.",
        Texts(
            "A completion came when all entries were taken. It is lost, and the CQ cannot be used "
            "any more. Whether the QPs that use it fail depends on the device.",
            ENTRIES,
            (OVERRUN,),
        ),
    ),
    Rule(
        "cq-too-small",
        ERROR,
        "more work is outstanding than a CQ has entries",
        "{outstanding:n signaled send} of {cq:CQ} were posted and their completions not polled, "
        "but the CQ has {entries:n entry}.",
        Texts(
            "If all of them complete before the next poll, the CQ overflows. Whether that happens "
            "depends on how fast the peer is.",
            ENTRIES + " Signaling one send of several takes fewer entries, too.",
            (OVERRUN,),
        ),
    ),
    Rule(
        "full-unsignaled",
        ERROR,
        "a send queue is full of unsignaled work requests",
        "A send on {qp:QP} was refused: its send queue of {depth:n work request} is full, and none "
        "of them is signaled.",
        Texts(
            "Slots of the queue are freed when the completion of a later, signaled work request is "
            "polled. None of these will make a completion, so the queue stays full for ever.",
            "Set IBV_SEND_SIGNALED on one send of several, at least once for each time the queue "
            "is filled (every half queue is usual), and poll its completion. Or create the QP "
            "with sq_sig_all = 1.",
            (
                (
                    "ibv_post_send(3)",
                    "IBV_SEND_SIGNALED Set the completion notification indicator. Relevant only "
                    "if QP was created with sq_sig_all=0",
                ),
            ),
        ),
    ),
    Rule(
        "mr-in-flight",
        ERROR,
        "a memory region was deregistered while in use",
        "ibv_dereg_mr() of {mr:MR} ({length:n byte} at {address:hex}) while it is in use by "
        "{requests:n work request} in flight. The first has the wr_id {wr_id}, on {qp:QP}.",
        Texts(
            "Until its completion was polled, the device may read or write the memory at any "
            "time. Without the region the request fails (IBV_WC_LOC_PROT_ERR), or is retried by "
            "the peer in vain.",
            "Poll the completions of these requests first. To give them up, move the QP to "
            "IBV_QPS_ERR, poll until all were flushed, and deregister the region then.",
            (BUFFERS,),
        ),
    ),
    Rule(
        "mr-unmapped",
        ERROR,
        "memory was given back while the device used it",
        "{call}() gave memory of {mr:MR} ({length:n byte} at {address:hex}) back while it is "
        "in use by {requests:n work request} in flight. The first has the wr_id {wr_id}, on "
        "{qp:QP}.",
        Texts(
            "The device still has the old pages: what it writes is never seen, and what it sends "
            "may be anything. Memory that malloc() gives out again is overwritten under its new "
            "owner.",
            "Poll the completions of these requests, call ibv_dereg_mr(), and only then free the "
            "memory.",
            (BUFFERS,),
        ),
    ),
    Rule(
        "qp-destroyed",
        ERROR,
        "completions of a destroyed QP were polled",
        "{completions:n completion} of {qp:QP} {completions:were} polled from {cq:CQ} after the QP "
        "had been destroyed.",
        Texts(
            "A wr_id is usually a pointer, here perhaps to memory that was freed together with the "
            "QP. Some providers remove these completions from the CQ when the QP is destroyed, "
            "others leave them there.",
            "Before ibv_destroy_qp(), poll the completions of all its work requests; move the QP "
            "to IBV_QPS_ERR first to have the rest flushed.",
            (BUFFERS,),
        ),
    ),
    Rule(
        "not-polled-after-arm",
        WARNING,
        "a thread slept without a poll after the arm",
        "{thread} slept on channel {channel} without having polled {cq:CQ} to its end after it was "
        "armed, with {outstanding:n work request} outstanding ({times:n time}).",
        Texts(
            "No wake-up was lost so far. But a completion that is added between the last poll and "
            "the arm raises no event, and the thread would sleep on.",
            AFTER_ARM.mend,
            (NEW_ENTRY,),
        ),
    ),
    Rule(
        "late-wakeup",
        WARNING,
        "late wake-up: a thread slept while completions waited",
        "{thread} slept in {call_text} on channel {channel} with no event on its way, while "
        "{cq:CQ} held {completions:n completion}{armed_text}. The sleep ended by its timeout, or "
        "another thread took them ({times:n time}).",
        AFTER_ARM,
        variants=BY_ARMED,
    ),
    Rule(
        "solicited-only",
        WARNING,
        "armed for solicited completions, and none was",
        "{cq:CQ} was armed for solicited completions only ({arms:n time}). "
        "{completions:n completion} came, and none raised an event.",
        Texts(
            "The sender decides: without IBV_SEND_SOLICITED its messages wake nobody here.",
            "Let the peer set IBV_SEND_SOLICITED in the send_flags of the messages that must wake "
            "this side, or arm with solicited_only = 0.",
            (SOLICITED,),
        ),
    ),
    Rule(
        "arm-per-poll",
        WARNING,
        "an arm for every poll",
        "{cq:CQ} was armed {arms:n time}, for {events:n event} and {sleeps:n sleep}.",
        Texts(
            "Arms between two sleeps change nothing, but each costs a system call or a write to "
            "the device.",
            "Poll until ibv_poll_cq() returns 0, and arm only before you sleep; then poll once "
            "more.",
            (ONE_SHOT,),
        ),
    ),
    Rule(
        "async-unread",
        WARNING,
        "asynchronous events that nobody read",
        "Asynchronous events of context {context} were not read before it was closed: {events}.",
        Texts(
            "These report what no completion reports: a CQ that overflowed, a QP in error, a port "
            "that went down, a device that failed.",
            "Read them in a thread with ibv_get_async_event(), or in the event loop when "
            "context->async_fd is readable, and pass each to ibv_ack_async_event().",
            (
                (
                    "ibv_get_async_event(3)",
                    "ibv_get_async_event() waits for the next async event of the RDMA device "
                    "context",
                ),
            ),
        ),
    ),
    Rule(
        "failed-completion",
        INFORMATION,
        "a completion with an error",
        "A work request of {qp:QP} failed: {status_text}, wr_id {wr_id}, vendor error "
        "{vendor:hex}, polled from {cq:CQ}.",
        Texts(
            "After a failure the QP is in the error state, and the rest of its requests is flushed "
            "with IBV_WC_WR_FLUSH_ERR. The first failure is the cause.",
            "Look at the status of every completion before anything else in it. Whether this "
            "program did so cannot be seen from outside.",
            (FAILED_WC,),
        ),
        variants={
            "IBV_WC_RETRY_EXC_ERR": Texts(
                "The peer did not answer: it is gone, its QP is not ready to receive or is "
                "destroyed, or the address (LID, GID, QP number) is not that of the peer.",
                "Check that the peer is in RTR or RTS before the first send, and waits for the "
                "last message before it ends.",
            ),
            "IBV_WC_RNR_RETRY_EXC_ERR": Texts(
                "The peer had no receive posted when the message came, for longer than rnr_retry "
                "allows.",
                "Post receives before the peer sends, as many as messages can be on their way. "
                "rnr_retry = 7 retries for ever.",
            ),
            "IBV_WC_LOC_PROT_ERR": Texts(
                "The request names memory that its lkey does not cover, or may not write to.",
                "Check addr, length and lkey of its ibv_sge; receives and reads need "
                "IBV_ACCESS_LOCAL_WRITE.",
            ),
            "IBV_WC_REM_ACCESS_ERR": Texts(
                "The peer refused access: the rkey, the range or the access flags of its region do "
                "not allow the operation.",
                "Check remote_addr and rkey, and IBV_ACCESS_REMOTE_WRITE or _READ of the region "
                "and of the peer's QP.",
            ),
            "IBV_WC_WR_FLUSH_ERR": Texts(
                "The QP was in the error state before this request was done: it was moved there, "
                "disconnected, or an unsignaled request failed before.",
                "This is how a QP ends in good order, too. If it was not meant to end, look for "
                "the failure of the peer.",
            ),
        },
        also=(("flushed", "{flushed:n request} of the QP {flushed:were} flushed after it."),),
    ),
    Rule(
        "wr-id-reused",
        INFORMATION,
        "a wr_id was given twice",
        "A {queue} on {qp:QP} was posted with the wr_id {wr_id}, which another one in flight has.",
        Texts(
            "The completions of the two can be told apart only by their order. This is no error "
            "if the program does not need to.",
            "Give each request in flight a wr_id of its own if its completion decides which "
            "buffer is free.",
            (
                (
                    "ibv_poll_cq(3)",
                    "uint64_t wr_id; /* ID of the completed Work Request (WR) */",
                ),
            ),
        ),
    ),
    Rule(
        "spurious-events",
        INFORMATION,
        "events after which the CQ was empty",
        "After {spurious} of {events:n event} of {cq:CQ} the poll found nothing.",
        Texts(
            "A CQ that is armed and polled afterwards raises an event for completions that this "
            "poll takes. It costs a wake-up, and nothing else: programs must allow for it.",
            "Nothing, if they are few. Else poll for a while before arming, so that completions "
            "that come in a burst need one event.",
            (ONE_SHOT,),
        ),
    ),
)

RULES: Final[Mapping[str, Rule]] = {rule.name: rule for rule in _RULES}


def find_rule(name: str) -> Rule:
    """Return a rule; one that is not known, of a newer observer, has no explanation."""
    return RULES.get(name) or Rule(
        name,
        WARNING,
        name,
        "The observer found {rule}, which this version of cqnotify cannot explain.".replace(
            "{rule}", name.replace("{", "").replace("}", "")
        ),
        Texts("", ""),
    )
