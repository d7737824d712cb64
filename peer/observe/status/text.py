"""What `peer status` prints: a pure function of the status report (`peer status --json`) and of the time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from peer.observe.formatting import amount, duration, harmless, local_time, loss_words, round_outcomes
from peer.observe.progress import words, worth_showing
from peer.observe.status.columns import Row, ago, ahead, counted, group, short, shortened

Report = Mapping[str, Any]
PEERS_SHOWN = 8
REFUSALS_SHOWN = 3
DATA = {
    "stdlib": "Python's standard library, as it is on each machine",
    "text": "each volunteer's own texts",
    "tokens": "token shards of the run",
}
ANSWERS = {True: "yes", False: "no", None: "not known yet"}
WHEN = {"day": "today", "month": "this month"}


def status_text(report: Report, now: float) -> str:
    """Write the report in at most 80 columns. `now`: seconds since the epoch. Parts that are not there yet are left
    out."""
    name = harmless(report.get("run") or report["run_id"][:16])
    role = " (the operator's node)" if report.get("role") == "bootstrap" else ""
    lines = [f"{name}: {report['status']}, up {duration(report['uptime_s'])}{role}"]
    for title, rows in (
        ("Now", _now(report, now)),
        ("Run", _run(report, now)),
        ("Training", _training(report)),
        ("Exchanges", _exchanges(report)),
        ("Others", _others(report)),
        ("Line", _line(report)),
        ("This machine", _machine(report)),
        ("Agreed to", _agreed(report)),
        ("Worth a look", _doubts(report)),
    ):
        lines += group(title, rows)
    return "\n".join(lines)


def _now(report: Report, now: float) -> Iterator[Row]:
    if leaving := report.get("leaving"):
        yield "leaving", f"{leaving['told']}; begun {ago(leaving['since_s'])}"
    elif (phase := report.get("phase", "")) != report["status"] and not _is_paused(report):
        yield "doing", shortened(phase)
    if worth_showing(wait := report.get("wait")):
        yield "waiting", f"{wait['name']}: {words(wait)}"
    if paused := report.get("paused"):
        yield "paused", _pause(paused, now)
        yield "quiet hours", f"every day {paused['quiet_hours']}" if paused.get("quiet_hours") else ""
        for name, told in paused.get("conditions", {}).items():
            yield name, f"{ANSWERS[told['value']]}: {told['why']}"
    if lacking := report.get("group", {}).get("lacking"):
        yield "no step", f"{lacking}; the work stays"
    for one in report.get("group", {}).get("left_out", ()):
        yield "left out", f"{one['peer_id']}: {one['reason']}"


def _is_paused(report: Report) -> bool:
    return bool(report.get("paused", {}).get("now", "no") != "no")


def _pause(paused: Report, now: float) -> str:
    if paused["now"] == "no":
        return ""
    if paused.get("since") is None:
        return str(paused["now"])
    until = paused.get("until")
    ends = "until `peer resume`" if until is None else f"ends {ahead(until - now)}, at {local_time(until)}"
    return f"by you, {ago(now - paused['since'])}; {ends}"


def _run(report: Report, now: float) -> Iterator[Row]:
    about = report.get("about", {})
    yield "id", report["run_id"][:16]
    if "parameters" in report:
        kind = f"{about['model']}, " if "model" in about else ""
        yield "model", f"{kind}{report['parameters']:,} parameters"
    yield "data", DATA.get(about.get("data", ""), "")
    yield "method", _method(about)
    yield "rounds", _rounds_of(report)
    if ends := report.get("ends_at"):
        yield "ends", f"{ahead(ends - now)}, at {local_time(ends)}" if ends > now else f"it ended {ago(now - ends)}"
    if admission := report.get("admission"):
        until = f"; your invitation holds until {admission['until']}" if admission["until"] else ""
        yield "admission", f"invited peers only{until}" if admission["kind"] == "invited" else "open to all"
    if count := report.get("amendments"):
        yield "amended", f"{counted(count, 'time')} by the operator; last: {_last_amendment(report)}"
    if kept := report.get("kept"):
        yield "for joiners", kept["why"] or "the run's first state"


def _last_amendment(report: Report) -> str:
    last = (report.get("amended") or [""])[-1]
    return " ".join(str(value) for value in last.values()) if isinstance(last, dict) else str(last)


def _method(about: Report) -> str:
    if "preset" not in about:
        return ""
    every = about["sync_every"]
    pause = duration(every) if about["clock"] == "seconds" else f"{every:,.0f} inner steps"
    return f"{about['preset']}, an exchange every {pause}"


def _rounds_of(report: Report) -> str:
    total = report.get("total_rounds")
    if "round" not in report:
        return f"{total:,} in all" if total else ""
    due = report.get("next_due_in_s")
    of = f" of {total:,}" if total else ""
    return f"now in {report['round']:,}{of}" + (f", due {ahead(due)}" if due is not None and due > 0 else "")


def _training(report: Report) -> Iterator[Row]:
    if "steps" not in report:
        return
    yield "steps", f"{report['steps']:,}, with {report['tokens']:,} tokens"
    yield "speed", f"{report['tokens_per_s']:,.0f} tokens/s"
    yield "loss", "none yet" if report["loss"] is None else loss_words(report["loss"])
    yield "hold-out", _hold_out(report.get("val_loss"))
    waited = report.get("seconds_waiting", 0.0)
    yield "time", f"{duration(report['seconds_training'])} of training, {duration(waited)} of waiting"
    yield "waits for", str(report.get("trainer_waits") or "")
    yield "work", _work(report.get("ledger", {}))


def _hold_out(evaluated: Any) -> str:
    if not evaluated:
        return "not evaluated yet"
    round_, nats, bits = evaluated
    return f"{loss_words(nats, bits)}, at round {round_:,}"


def _work(ledger: Report) -> str:
    if not ledger.get("processed"):
        return ""
    parts = {name: ledger[name] / ledger["processed"] for name in ("applied", "outstanding", "dropped")}
    told = f"{parts['applied']:.0%} is in the model, {parts['outstanding']:.0%} waits for the next outer step"
    return told + (f", {parts['dropped']:.1%} was dropped" if ledger["dropped"] else "")


def _exchanges(report: Report) -> Iterator[Row]:
    if "rounds" not in report:
        return
    yield "last round", _last_round(report)
    yield "so far", _participation(report["rounds"])
    if others := {name: count for name, count in report.get("paths", {}).items() if name != "direct"}:
        direct = report["paths"].get("direct", 0)
        yield "paths", ", ".join(f"{count:,} {name}" for name, count in {"direct": direct, **others}.items())
    if params := report.get("partner_params"):
        told = [f"{params[name]:,} {name}" for name in ("taken", "clipped", "refused", "unchecked") if params[name]]
        yield "params", ", ".join(told) and f"of partners, {', '.join(told)}"
    if receipts := report.get("receipts"):
        yield "receipts", f"{receipts['kept']:,} signed by partners: `peer contribution show`"


def _last_round(report: Report) -> str:
    if not report.get("last_outcome"):
        return "none yet"
    whom = report["last_partner"]
    if not whom:
        return str(report["last_outcome"])
    return f"{report['last_outcome']} with {short(whom)} in {_seconds(report['last_seconds'])}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 10 else duration(seconds)


def _participation(rounds: Report) -> str:
    if not (due := rounds.get("due", 0)):
        return "none was due yet"
    skipped = f"; beside these {rounds['skipped']:,} skipped" if rounds.get("skipped") else ""
    share = rounds.get("exchanged", 0) / due
    return f"{round_outcomes(rounds)} of {due:,} due ({share:.0%} exchanged){skipped}"


def _others(report: Report) -> Iterator[Row]:
    peers = report.get("peers", [])
    if peers:
        train, dialled = (sum(flags) for flags in zip(*map(_traits, peers), strict=True))
        yield "peers", f"{counted(len(peers), 'other')} known, {train:,} training, {dialled:,} can be dialled"
    elif "peers" in report:
        yield "peers", "no other is known: this one trains alone, and goes on looking"
    for peer in peers[:PEERS_SHOWN]:
        yield short(peer["peer_id"]), _peer(peer)
    if len(peers) > PEERS_SHOWN:
        yield "", f"and {len(peers) - PEERS_SHOWN:,} more: `peer status --ids`"
    if reachable := report.get("reachable"):
        yield "reachable", f"{ANSWERS[reachable['value']]}: {reachable['why']}"
    if relays := report.get("relays"):
        yield "relays", f"others reach this peer over {', '.join(short(one['peer_id']) for one in relays)}"
    if directory := report.get("directory"):
        yield "directory", f"{directory['state']}, {counted(directory['neighbours'], 'neighbour')}"


def _traits(peer: Report) -> tuple[bool, bool]:
    return peer["status"] == "training", bool(peer["reachable"])


def _peer(peer: Report) -> str:
    """Tell a peer in a line: what it does, whether it may be a partner, and how it is called."""
    choice, _, why = peer["pairs"].partition(": ")
    named = {"yes": "may be a partner", "no": "no partner", "last": "asked last"}.get(choice, choice)
    why = "" if why == f"it is {peer['status']}" else why
    path = f", {peer['path']['path']} path" if peer["path"]["path"] else ""
    return f"{peer['status']}, round {peer['round']:,}; {named}{f': {why}' if why else ''}{path}"


def _line(report: Report) -> Iterator[Row]:
    for name in ("sent", "received"):
        cap, nbytes = report.get("caps", {}).get(name), amount(report[f"bytes_{name}"], "bytes")
        control = sum(report.get("control_bytes", {}).get(name, {}).values())
        beside = f" of payload, {amount(control, 'bytes')} of control messages" if control else " of payload"
        capped = "no cap" if cap is None else f"at most {amount(cap, 'bytes')}/s"
        yield name, f"{nbytes}{beside}, {capped}"
    if line := report.get("line_bytes"):
        yield "on the line", _on_the_line(line)
    yield "budget", _budget(report.get("budget", {}))
    if (mapping := report.get("port_mapping")) and mapping["value"]:
        yield "router", mapping["why"]
    if (relaying := report.get("relaying")) and relaying["reservations"]:
        carried = f"{counted(relaying['reservations'], 'peer')}, {amount(relaying['bytes'], 'bytes')} so far"
        yield "relays for", f"{carried}, at most {amount(relaying['rate'], 'bytes')}/s"


def _on_the_line(line: Report) -> str:
    """Tell all bytes, those of connections and headers included."""
    how = "measured by the kernel" if line["measured"] else "estimated from the above"
    return f"{amount(line['sent'], 'bytes')} sent, {amount(line['received'], 'bytes')} received in all, {how}"


def _budget(budget: Report) -> str:
    told = []
    for period, limit in budget.get("limit", {}).items():
        if limit:
            back = f", {amount(budget['kept_back'][period], 'bytes')} kept back" if "kept_back" in budget else ""
            told.append(f"{amount(budget['used'][period], 'bytes')} of {amount(limit, 'bytes')} {WHEN[period]}{back}")
    return "; ".join(told)


def _machine(report: Report) -> Iterator[Row]:
    yield "peer id", report["peer_id"]
    for address in report.get("addresses", []):
        yield "address", f"{address.partition('/p2p/')[0]}"
    if report.get("addresses"):
        yield "ticket", "`peer ticket new` makes one with these addresses"
    yield "log", report.get("log", "")
    yield "page", report.get("page", "")
    machine = report.get("machine", {})
    yield "joined in", duration(machine["joined_in_s"]) + _waited(machine) if machine.get("joined_in_s") else ""
    yield "micro-batch", machine.get("micro_batch", "")
    if correction := report.get("clock_correction_s"):
        off = f"{abs(correction):.1f} s {'behind' if correction > 0 else 'ahead of'} the others, corrected"
        yield "clock", off if abs(correction) >= 0.1 else "right within 0.1 s"
    yield "signing key", report.get("operators_key", "")


def _waited(machine: Report) -> str:
    waited = machine.get("waited_for_you_s", 0.0)
    return f", beside {duration(waited)} of waiting for you" if waited >= 1 else ""


def _agreed(report: Report) -> Iterator[Row]:
    """Tell the terms of the volunteer."""
    yield from (report.get("contract") or {}).get("terms", [])


def _doubts(report: Report) -> Iterator[Row]:
    yield "key", report.get("key_shared", "")
    membership = report.get("membership", {})
    if (cut_off := membership.get("cut_off_s")) is not None:
        yield "connection", f"nobody answers for {duration(cut_off)}: is this machine's connection down?"
    for one in membership.get("suspected", []):
        what = "answers nobody" if one["out"] else "is suspected"
        yield short(one["peer_id"]), f"{what} for {duration(one['seconds'])}: {one['reason']}"
    for told in report.get("machine", {}).get("unfit", []):
        yield "slow", told
    directory = report.get("directory", {})
    yield "directory", directory.get("why", "")
    if directory.get("losses"):
        yield "p2pd", f"restarted {counted(directory['losses'], 'time')}, last because {directory['last_loss']}"
    yield "budget", report.get("budget", {}).get("why", "")
    for finding in report.get("diagnosis", []):
        if finding["who"]:
            yield "line" if finding["who"] == "you" else "partner", finding["why"]
    params = report.get("partner_params") or {}
    yield "unchecked", params.get("why_unchecked", "")
    if last := params.get("last_refused"):
        yield "refused", f"params of {short(last['peer_id'])} in round {last['round']:,}: {last['reason']}"
    for one in report.get("out_of_favour", [])[:REFUSALS_SHOWN]:
        yield "shunned", f"{short(one['peer_id'])} for {duration(one['seconds_left'])}: {one['reason']}"
    for one in report.get("refusals", [])[:REFUSALS_SHOWN]:
        yield "declined", f"{ago(one['seconds_ago'])}, {short(one['caller'])}: {one['reason']} ({one['code']})"
