"""The faults of a chaos run: those that are planned, and those that were injected."""

from dataclasses import dataclass, field

from benchmarks.chaos.audit import Holding


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The faults of a run: at least `num_kills` over at least `seconds`, the others evenly among them.

    `kill_pause` is the mean time between kills. A blackout kills all control planes at once; `num_freezes`
    are of workers. After `longest_seconds` no more faults are injected, and no more jobs submitted.
    While a control plane is frozen with the lock, another one must write within `goes_on_seconds`. A kill in
    a download is of a worker that fetches its model, a kill of several of one that has several models.
    """

    num_kills: int
    kill_pause: float
    seconds: float
    num_freezes: int
    num_server_freezes: int
    num_transaction_freezes: int
    goes_on_seconds: float
    num_blackouts: int
    num_valkey_kills: int
    num_database_restarts: int
    num_full_disks: int
    num_clock_steps: int
    num_bucket_outages: int
    num_cut_uploads: int
    bucket_away_seconds: float
    num_database_outages: int
    database_away_seconds: float
    num_download_kills: int
    num_decode_kills: int
    num_decode_freezes: int
    num_several_kills: int
    has_bad_network: bool
    longest_seconds: float
    lease_seconds: float
    webhook_grace_seconds: float
    seed: int


@dataclass
class InjectedFaults:
    """The injected faults. `hurt` are the leases of an agent or engine when it was killed or suspended.

    `excused` are leases that it may have got in that moment, and `transaction_freezes` the seconds until
    another control plane wrote.
    """

    kills: dict[str, int] = field(default_factory=dict)
    running_when_killed: int = 0
    running_when_server_killed: int = 0
    freezes: int = 0
    running_when_frozen: int = 0
    server_freezes: int = 0
    transaction_freezes: list[float] = field(default_factory=list)
    blackouts: int = 0
    valkey_kills: int = 0
    database_restarts: int = 0
    full_disks: int = 0
    clock_steps: int = 0
    bucket_outages: int = 0
    cut_uploads: int = 0
    database_outages: int = 0
    download_kills: int = 0
    decode_kills: int = 0
    decode_freezes: int = 0
    several_kills: int = 0
    hurt: list[Holding] = field(default_factory=list)
    excused: list[Holding] = field(default_factory=list)

    def count_kill(self, target: str) -> None:
        self.kills[target] = self.kills.get(target, 0) + 1

    @property
    def num_kills(self) -> int:
        return sum(self.kills.values())

    @property
    def num_faults(self) -> int:
        """All faults, without those of the network. The kills of a blackout are counted one by one."""
        freezes = self.freezes + self.server_freezes + len(self.transaction_freezes)
        outages = self.valkey_kills + self.database_restarts + self.full_disks + self.clock_steps
        away = self.bucket_outages + self.cut_uploads + self.database_outages
        chosen = self.download_kills + self.decode_kills + self.decode_freezes + self.several_kills
        return self.num_kills + freezes + outages + away + chosen
