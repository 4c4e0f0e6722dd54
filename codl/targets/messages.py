"""What is said to an agent and what it answers; each is one frame.

One request is under way at a time. An agent answers with any number of events and then with the
request's `reply`, or with `Failed`.
"""

from __future__ import annotations

from typing import TypeAlias

from codl.targets.measure_messages import (
    Benched,
    BenchOp,
    Checking,
    CheckKernels,
    ChecksEnded,
    Clocks,
    Compile,
    ConditionsRead,
    CoresSeen,
    Describe,
    Described,
    DrawFrames,
    Examine,
    Examined,
    FactMeasured,
    FactsMeasured,
    Found,
    FramesDrawn,
    GovernorSet,
    Identified,
    Import,
    Imported,
    KernelChecked,
    Look,
    Looked,
    Measure,
    Measured,
    MeasuredRow,
    MeasureFact,
    MeasureFacts,
    MeasurePace,
    MeasurePower,
    ObserveCores,
    Open,
    OpenDevice,
    Paced,
    PowerMeasured,
    Probe,
    Probed,
    ReadClocks,
    ReadConditions,
    ReadSpent,
    Searching,
    SetGovernor,
    Spent,
    Tune,
    TuneEnded,
)
from codl.targets.message_base import (
    Advanced,
    Building,
    Done,
    Failed,
    Hello,
    Timing,
    Warned,
)
from codl.targets.model_messages import (
    BecomePeer,
    BinariesRead,
    FeedPeer,
    KernelsRefused,
    Lacking,
    Lacks,
    Load,
    ModelLoaded,
    ObservePeer,
    PeerFed,
    PeerObserved,
    PeerOutputs,
    PeerRan,
    PeerReady,
    PeerStarted,
    Profile,
    Profiled,
    Ran,
    ReadBinaries,
    ReadPeer,
    ReadPeerOf,
    Run,
    RunPeer,
    StartPeer,
    Time,
    TimesTogether,
    Unload,
)

AnyRequest: TypeAlias = (
    Describe
    | Look
    | Probe
    | Open
    | OpenDevice
    | MeasureFact
    | MeasureFacts
    | ObserveCores
    | ReadClocks
    | ReadConditions
    | SetGovernor
    | ReadSpent
    | Compile
    | Measure
    | Tune
    | BenchOp
    | DrawFrames
    | MeasurePower
    | Examine
    | Import
    | MeasurePace
    | CheckKernels
    | Lacks
    | Load
    | Run
    | Profile
    | Time
    | Unload
    | ReadBinaries
    | StartPeer
    | ReadPeerOf
    | BecomePeer
    | FeedPeer
    | RunPeer
    | ObservePeer
    | ReadPeer
)
AnyReply: TypeAlias = (
    Hello
    | Failed
    | Warned
    | Advanced
    | Building
    | Timing
    | Done
    | Described
    | Looked
    | Probed
    | FactMeasured
    | FactsMeasured
    | CoresSeen
    | Clocks
    | ConditionsRead
    | GovernorSet
    | Spent
    | Measured
    | MeasuredRow
    | Searching
    | Found
    | TuneEnded
    | Benched
    | FramesDrawn
    | PowerMeasured
    | Examined
    | Imported
    | Paced
    | Checking
    | KernelChecked
    | ChecksEnded
    | Lacking
    | ModelLoaded
    | KernelsRefused
    | Ran
    | Profiled
    | TimesTogether
    | Identified
    | BinariesRead
    | PeerStarted
    | PeerOutputs
    | PeerReady
    | PeerFed
    | PeerRan
    | PeerObserved
)
