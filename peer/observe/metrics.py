"""The table of all metrics. The endpoint serves it, `docs/reference/metrics.md` documents it, and tests compare the
two.

`Metric.path` is a dotted path into the facts of `peer.observe.exposition`; its first part names the source. `{label}`
in a path stands for each value of the label. All label values are listed here, so that nothing from outside can create
new time series. Peer ids are not labels here; `peer.observe.run_metrics` has a bounded number of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from peer.codes import Code
from peer.observe.control_bytes import PURPOSES
from peer.protocol.diagnosis.outliers import WHATS
from peer.protocol.messages import PathKind
from peer.protocol.policy.upload_quota import PERIODS

Kind = Literal["counter", "gauge", "histogram", "info"]

SOURCES = {
    "status": "`peer status --json`",
    "sums": "the complete journal, over all starts",
    "seen": "counted from `peer status --json`",
    "counted": "journal events since the daemon started",
    "proc": "the system (`/proc`, absent where there is none)",
    "loop": "the daemon's own event loop",
    "build": "the program",
}
"""Sources of values, by the first part of a metric's path."""

DIRECTIONS = ("sent", "received")
OUTCOMES = ("exchanged", "solo", "refused", "missed", "sat_out", "skipped")
VERDICTS = ("taken", "clipped", "refused")
STATUSES = ("joining", "training", "paused", "finished", "serving", "ended", "leaving")
PROCESSES = ("daemon", "trainer", "p2pd")
CODES = tuple(code.value for code in Code)
EXCHANGE_BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Upper bounds of the histogram's buckets, in seconds."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: its name and help for Prometheus, and where its value comes from."""

    name: str
    kind: Kind
    help: str
    path: str
    unit: str = ""
    """Prometheus base unit; part of the name."""
    label: str = ""
    values: tuple[str, ...] = ()
    """All values of the label. For an `info` metric: the names of its labels; the values of the labels are looked up
    under these names."""
    per: str = ""
    """Path of a number by which the value is divided."""
    equals: bool = False
    """The sample is 1 for the label value that equals the value found, else 0."""
    bootstrap: bool = False
    """Whether a bootstrap node serves the metric, too."""


LEDGER = "Tokens of the full model: the ledger counts tokens x elements, divided here by the parameters."

METRICS: tuple[Metric, ...] = (
    # -- who and what
    Metric(
        "peer_build_info",
        "info",
        "Always 1. The versions are in its labels.",
        "build",
        values=("version", "python", "torch"),
        bootstrap=True,
    ),
    Metric(
        "peer_run_info",
        "info",
        "Always 1. The run is in its labels.",
        "status",
        values=("run_id", "role"),
        bootstrap=True,
    ),
    Metric(
        "peer_status",
        "gauge",
        "1 for the current status of the peer, else 0.",
        "status.status",
        label="status",
        values=STATUSES,
        equals=True,
        bootstrap=True,
    ),
    Metric(
        "peer_uptime_seconds",
        "gauge",
        "Seconds since the daemon started.",
        "status.uptime_s",
        "seconds",
        bootstrap=True,
    ),
    Metric(
        "peer_model_parameters",
        "gauge",
        "Parameters of the run's model.",
        "status.parameters",
        unit="parameters",
        bootstrap=True,
    ),
    Metric("peer_daemon_starts_total", "counter", "Starts of the daemon in this run's folder.", "sums.starts"),
    # -- training
    Metric("peer_inner_steps_total", "counter", "Optimizer steps of the trainer.", "status.steps", unit="steps"),
    Metric("peer_training_tokens_per_second", "gauge", "Latest training speed.", "status.tokens_per_s"),
    Metric(
        "peer_training_seconds_total",
        "counter",
        "Time spent in inner steps.",
        "status.seconds_training",
        unit="seconds",
    ),
    Metric(
        "peer_waiting_seconds_total",
        "counter",
        "Time in which the trainer waited for the new parameters after a round.",
        "status.seconds_waiting",
        unit="seconds",
    ),
    Metric(
        "peer_train_loss_nats",
        "gauge",
        "Training loss of the latest step, nats a token.",
        "status.loss",
        unit="nats",
    ),
    Metric(
        "peer_eval_loss_nats",
        "gauge",
        "Loss of outer_params on the hold-out, nats a token, latest evaluation.",
        "sums.eval.loss",
        unit="nats",
    ),
    Metric("peer_eval_bits_per_byte", "gauge", "The latest hold-out loss in bits per byte.", "sums.eval.bits_per_byte"),
    Metric("peer_eval_round", "gauge", "Round of the latest evaluation.", "sums.eval.round"),
    # -- the ledger
    Metric(
        "peer_tokens_processed_total",
        "counter",
        "Work that the trainer has processed. " + LEDGER,
        "status.ledger.processed",
        unit="tokens",
        per="status.parameters",
    ),
    Metric(
        "peer_tokens_applied_total",
        "counter",
        "Work that is part of an outer step. " + LEDGER,
        "status.ledger.applied",
        unit="tokens",
        per="status.parameters",
    ),
    Metric(
        "peer_tokens_dropped_total",
        "counter",
        "Work that was discarded: no outer step will include it. " + LEDGER,
        "status.ledger.dropped",
        unit="tokens",
        per="status.parameters",
    ),
    Metric(
        "peer_tokens_outstanding",
        "gauge",
        "Work that is not part of an outer step yet. " + LEDGER,
        "status.ledger.outstanding",
        unit="tokens",
        per="status.parameters",
    ),
    # -- rounds
    Metric("peer_round", "gauge", "Current round.", "status.round"),
    Metric(
        "peer_round_due_seconds",
        "gauge",
        "Time until the round is due. Absent with a clock in steps.",
        "status.next_due_in_s",
        unit="seconds",
    ),
    Metric("peer_rounds_due_total", "counter", "Rounds that were due for this peer.", "status.rounds.due"),
    Metric(
        "peer_rounds_total",
        "counter",
        "Rounds by their outcome.",
        "status.rounds.{outcome}",
        label="outcome",
        values=OUTCOMES,
    ),
    Metric(
        "peer_exchanged_rounds_total",
        "counter",
        "Exchanged rounds by the path that their bytes took.",
        "status.paths.{path}",
        label="path",
        values=tuple(path.value for path in PathKind),
    ),
    Metric(
        "peer_relayed_bytes_total",
        "counter",
        "Bytes relayed for closed peers.",
        "status.relaying.bytes",
        unit="bytes",
        bootstrap=True,
    ),
    Metric(
        "peer_relay_reservations",
        "gauge",
        "Closed peers that this peer relays for.",
        "status.relaying.reservations",
        bootstrap=True,
    ),
    Metric("peer_participation_ratio", "gauge", "Rounds exchanged / rounds due.", "seen.participation", unit="ratio"),
    Metric(
        "peer_exchange_duration_seconds",
        "histogram",
        "Duration of the transfers of exchanged rounds.",
        "counted.exchange_seconds",
        unit="seconds",
    ),
    Metric(
        "peer_exchange_bytes_total",
        "counter",
        "Payload of exchanged rounds, over all starts.",
        "sums.exchange_bytes.{direction}",
        unit="bytes",
        label="direction",
        values=DIRECTIONS,
    ),
    Metric(
        "peer_partner_failures_total",
        "counter",
        "Exchanges with a locked partner that failed, by code.",
        "counted.partner_failures.{code}",
        label="code",
        values=CODES,
    ),
    Metric(
        "peer_partner_params_total",
        "counter",
        "Pairs: partners' params that were taken whole, clipped, or refused.",
        "status.partner_params.{verdict}",
        label="verdict",
        values=VERDICTS,
    ),
    Metric(
        "peer_partner_params_unchecked_total",
        "counter",
        "Partners' params that were not checked although the run asks for it. `peer status` shows the reason.",
        "status.partner_params.unchecked",
    ),
    # -- who is there
    Metric(
        "peer_membership_suspected",
        "gauge",
        "Peers that do not answer but are still candidates, while others are asked whether they reach them.",
        "status.membership.suspected_count",
    ),
    Metric(
        "peer_membership_out",
        "gauge",
        "Peers that are no candidates, because other peers do not reach them either.",
        "status.membership.out_count",
    ),
    # -- who is slow
    Metric(
        "peer_exchange_rate_bytes_per_second",
        "gauge",
        "Median transfer rate of the latest exchanges. Absent until there are enough.",
        "status.exchanging.{direction}",
        label="direction",
        values=DIRECTIONS,
    ),
    Metric(
        "peer_trainer_late_seconds",
        "gauge",
        "Median time by which the trainer is ready after its partners, without delays by earlier exchanges.",
        "status.exchanging.late_s",
        unit="seconds",
    ),
    Metric(
        "peer_diagnosis_findings",
        "gauge",
        "Slow or stuck links and trainers, of this peer or its partners. `peer status` shows the numbers.",
        "seen.found.{what}",
        label="what",
        values=WHATS,
    ),
    # -- the network
    Metric(
        "peer_network_bytes_total",
        "counter",
        "Payload frames of every kind since the daemon started.",
        "status.bytes_{direction}",
        unit="bytes",
        label="direction",
        values=DIRECTIONS,
        bootstrap=True,
    ),
    Metric(
        "peer_control_sent_bytes_total",
        "counter",
        "Control messages sent since the daemon started, without frames, encryption and headers.",
        "status.control_bytes.sent.{purpose}",
        unit="bytes",
        label="purpose",
        values=PURPOSES,
        bootstrap=True,
    ),
    Metric(
        "peer_control_received_bytes_total",
        "counter",
        "Control messages received since the daemon started, without frames, encryption and headers.",
        "status.control_bytes.received.{purpose}",
        unit="bytes",
        label="purpose",
        values=PURPOSES,
        bootstrap=True,
    ),
    Metric(
        "peer_network_cap_bytes_per_second",
        "gauge",
        "The volunteer's limits on the transfer rate. Absent without a limit.",
        "status.caps.{direction}",
        label="direction",
        values=DIRECTIONS,
        bootstrap=True,
    ),
    Metric(
        "peer_upload_used_bytes",
        "gauge",
        "Bytes on the line sent in the calendar day and month, local time.",
        "status.budget.used.{period}",
        unit="bytes",
        label="period",
        values=PERIODS,
    ),
    Metric(
        "peer_upload_budget_bytes",
        "gauge",
        "The volunteer's upload quota. Absent without one.",
        "status.budget.limit.{period}",
        unit="bytes",
        label="period",
        values=PERIODS,
    ),
    Metric(
        "peer_peers_known",
        "gauge",
        "Other peers with a live record, by their status.",
        "seen.peers.{status}",
        label="status",
        values=STATUSES,
    ),
    Metric("peer_peers_reachable", "gauge", "Other peers with a live record that can be dialled.", "seen.reachable"),
    Metric(
        "peer_reachable",
        "gauge",
        "1: others can dial this peer. 0: they cannot. Absent: not known yet.",
        "status.reachable.value",
        bootstrap=True,
    ),
    Metric(
        "peer_directory_neighbours", "gauge", "Nodes in the DHT's routing table.", "status.neighbours", bootstrap=True
    ),
    Metric(
        "peer_directory_state",
        "gauge",
        "1 for the state of the directory, else 0.",
        "status.directory.state",
        label="state",
        values=("joined", "alone", "rebuilding"),
        equals=True,
        bootstrap=True,
    ),
    Metric(
        "peer_helper_restarts_total",
        "counter",
        "Restarts of the DHT helper (p2pd) after it was lost.",
        "status.directory.losses",
        bootstrap=True,
    ),
    Metric(
        "peer_refusals_total",
        "counter",
        "Offences and refusals of other peers, by code.",
        "status.refusal_counts.{code}",
        label="code",
        values=CODES,
    ),
    Metric(
        "peer_clock_correction_seconds",
        "gauge",
        "Correction of this machine's clock to that of the swarm.",
        "status.clock_correction_s",
        unit="seconds",
        bootstrap=True,
    ),
    # -- the machine
    Metric(
        "peer_trainer_deaths_total", "counter", "Deaths of the trainer process, over all starts.", "sums.trainer_deaths"
    ),
    Metric(
        "peer_trainer_restarts_total",
        "counter",
        "Restarts of the trainer after it died.",
        "counted.trainer_restarts",
    ),
    Metric("peer_checkpoints_total", "counter", "Checkpoints written.", "counted.checkpoints"),
    Metric("peer_checkpoint_failures_total", "counter", "Checkpoints not written.", "counted.checkpoint_failures"),
    Metric(
        "peer_checkpoint_duration_seconds",
        "gauge",
        "Duration of the latest checkpoint.",
        "counted.checkpoint.seconds",
        unit="seconds",
    ),
    Metric(
        "peer_checkpoint_size_bytes",
        "gauge",
        "Size of the latest checkpoint.",
        "counted.checkpoint.bytes",
        unit="bytes",
    ),
    Metric(
        "peer_checkpoint_age_seconds",
        "gauge",
        "Age of the latest checkpoint of this start. Absent until there is one.",
        "counted.checkpoint.age_s",
        unit="seconds",
    ),
    Metric(
        "peer_process_resident_memory_bytes",
        "gauge",
        "Resident memory, by process.",
        "proc.{process}.resident_bytes",
        unit="bytes",
        label="process",
        values=PROCESSES,
        bootstrap=True,
    ),
    Metric(
        "peer_process_open_fds",
        "gauge",
        "Open files and sockets, by process.",
        "proc.{process}.open_files",
        label="process",
        values=PROCESSES,
        bootstrap=True,
    ),
    Metric(
        "peer_event_loop_lag_seconds",
        "gauge",
        "Largest delay of a timer of the daemon's event loop since the last scrape.",
        "loop.lag_s",
        unit="seconds",
        bootstrap=True,
    ),
)
