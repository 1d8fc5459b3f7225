"""The messages of an experiment: events in, decisions and commands out, all frozen.

The state of an experiment is a fold over all three in the order of the journal, so a journal can be replayed without
deciding anything anew.
"""

from hopfleet.domain.messages.codec import Message as Message
from hopfleet.domain.messages.codec import decode as decode
from hopfleet.domain.messages.codec import encode as encode
from hopfleet.domain.messages.codec import kind_of as kind_of
from hopfleet.domain.messages.commands import AddWorkers as AddWorkers
from hopfleet.domain.messages.commands import Command as Command
from hopfleet.domain.messages.commands import CopyVersion as CopyVersion
from hopfleet.domain.messages.commands import DropVersion as DropVersion
from hopfleet.domain.messages.commands import Finish as Finish
from hopfleet.domain.messages.commands import FormTeams as FormTeams
from hopfleet.domain.messages.commands import PlacePartition as PlacePartition
from hopfleet.domain.messages.commands import ReleaseWorker as ReleaseWorker
from hopfleet.domain.messages.commands import RunUnit as RunUnit
from hopfleet.domain.messages.commands import SaveVersion as SaveVersion
from hopfleet.domain.messages.commands import StopUnit as StopUnit
from hopfleet.domain.messages.decisions import Decision as Decision
from hopfleet.domain.messages.decisions import DevicesAllocated as DevicesAllocated
from hopfleet.domain.messages.decisions import EpochEnded as EpochEnded
from hopfleet.domain.messages.decisions import PartitionsMissing as PartitionsMissing
from hopfleet.domain.messages.decisions import RequestAnswered as RequestAnswered
from hopfleet.domain.messages.decisions import RunHeld as RunHeld
from hopfleet.domain.messages.decisions import RunStalled as RunStalled
from hopfleet.domain.messages.decisions import SearchExtended as SearchExtended
from hopfleet.domain.messages.decisions import TrialAdded as TrialAdded
from hopfleet.domain.messages.decisions import TrialDeleted as TrialDeleted
from hopfleet.domain.messages.decisions import TrialEnded as TrialEnded
from hopfleet.domain.messages.decisions import TrialPaused as TrialPaused
from hopfleet.domain.messages.decisions import TrialPrioritised as TrialPrioritised
from hopfleet.domain.messages.decisions import TrialResumed as TrialResumed
from hopfleet.domain.messages.decisions import TrialRolledBack as TrialRolledBack
from hopfleet.domain.messages.decisions import TrialStopped as TrialStopped
from hopfleet.domain.messages.decisions import WorkerRetired as WorkerRetired
from hopfleet.domain.messages.events import RELEASED as RELEASED
from hopfleet.domain.messages.events import Event as Event
from hopfleet.domain.messages.events import PartitionPlaced as PartitionPlaced
from hopfleet.domain.messages.events import PartitionUnavailable as PartitionUnavailable
from hopfleet.domain.messages.events import RecordLogged as RecordLogged
from hopfleet.domain.messages.events import RequestMade as RequestMade
from hopfleet.domain.messages.events import RunStarted as RunStarted
from hopfleet.domain.messages.events import SaveDelayed as SaveDelayed
from hopfleet.domain.messages.events import SaveFailed as SaveFailed
from hopfleet.domain.messages.events import UnitFailed as UnitFailed
from hopfleet.domain.messages.events import UnitFinished as UnitFinished
from hopfleet.domain.messages.events import UnitOverdue as UnitOverdue
from hopfleet.domain.messages.events import UnitStopped as UnitStopped
from hopfleet.domain.messages.events import VersionLost as VersionLost
from hopfleet.domain.messages.events import VersionSaved as VersionSaved
from hopfleet.domain.messages.events import WorkerJoined as WorkerJoined
from hopfleet.domain.messages.events import WorkerLost as WorkerLost
from hopfleet.domain.messages.events import WorkerUnavailable as WorkerUnavailable
