"""The one import for authors of searches, rules, policies, backends, strategies, frameworks, stores and observers.

docs/extend has a page for each kind and promises how long these names stay. ``messages`` are what workers and the
controller exchange, and ``protocol`` what backends send to workers that run elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopfleet.support.lazy import lazy

if TYPE_CHECKING:
    from hopfleet.backends.base import Backend as Backend
    from hopfleet.backends.base import Cluster as Cluster
    from hopfleet.backends.base import FormsTeams as FormsTeams
    from hopfleet.backends.base import KeepsTo as KeepsTo
    from hopfleet.backends.base import Measurable as Measurable
    from hopfleet.backends.base import Offer as Offer
    from hopfleet.backends.base import Supervisor as Supervisor
    from hopfleet.backends.base import WarmsUp as WarmsUp
    from hopfleet.backends.base import WorkerHealth as WorkerHealth
    from hopfleet.backends.inline import Inline as Inline
    from hopfleet.backends.local.backend import Local as Local
    from hopfleet.backends.supervision import SupervisedBackend as SupervisedBackend
    from hopfleet.data.etl.labels import Outcome as Outcome
    from hopfleet.domain import messages as messages
    from hopfleet.domain.batching import Batching as Batching
    from hopfleet.domain.expectation import Expectation as Expectation
    from hopfleet.domain.placement import Placement as Placement
    from hopfleet.domain.placement import TeamShape as TeamShape
    from hopfleet.domain.rowsum import RowSum as RowSum
    from hopfleet.domain.space import Space as Space
    from hopfleet.domain.space import configure as configure
    from hopfleet.domain.space import values as values
    from hopfleet.domain.space.chooser import Chooser as Chooser
    from hopfleet.domain.step_values import StepValues as StepValues
    from hopfleet.domain.trial import Config as Config
    from hopfleet.domain.trial import Trial as Trial
    from hopfleet.domain.trial import TrialState as TrialState
    from hopfleet.domain.unit import Unit as Unit
    from hopfleet.domain.unit import Work as Work
    from hopfleet.domain.version_ref import VersionRef as VersionRef
    from hopfleet.errors import CheckpointError as CheckpointError
    from hopfleet.errors import DataError as DataError
    from hopfleet.errors import HopfleetError as HopfleetError
    from hopfleet.errors import JournalError as JournalError
    from hopfleet.errors import NotFinite as NotFinite
    from hopfleet.errors import TaskError as TaskError
    from hopfleet.errors import UsageError as UsageError
    from hopfleet.frameworks.base import Batch as Batch
    from hopfleet.frameworks.base import Batches as Batches
    from hopfleet.frameworks.base import EngineCache as EngineCache
    from hopfleet.frameworks.base import Flotilla as Flotilla
    from hopfleet.frameworks.base import Framework as Framework
    from hopfleet.frameworks.base import GivenUp as GivenUp
    from hopfleet.frameworks.base import IsolationError as IsolationError
    from hopfleet.frameworks.base import Session as Session
    from hopfleet.frameworks.base import SharedStateChanged as SharedStateChanged
    from hopfleet.frameworks.base import Task as Task
    from hopfleet.frameworks.base import TrackedConfig as TrackedConfig
    from hopfleet.frameworks.estimate import ResourceEstimate as ResourceEstimate
    from hopfleet.frameworks.example import Example as Example
    from hopfleet.frameworks.example import ExampleTask as ExampleTask
    from hopfleet.frameworks.example import example_of as example_of
    from hopfleet.frameworks.example import inputs_of as inputs_of
    from hopfleet.frameworks.host import HostSession as HostSession
    from hopfleet.frameworks.process_settings import ProcessSetting as ProcessSetting
    from hopfleet.frameworks.teams import Membership as Membership
    from hopfleet.frameworks.torch.parallel.blocks import Block as Block
    from hopfleet.frameworks.torch.parallel.strategy import Share as Share
    from hopfleet.frameworks.torch.parallel.strategy import SpreadTrial as SpreadTrial
    from hopfleet.frameworks.torch.parallel.strategy import Strategy as Strategy
    from hopfleet.frameworks.torch.parallel.strategy import TeamSteps as TeamSteps
    from hopfleet.frameworks.torch.trial import LiveTrial as LiveTrial
    from hopfleet.monitor.observer import Observer as Observer
    from hopfleet.planner.dike.problem import Node as Node
    from hopfleet.runtime.callbacks import Callback as Callback
    from hopfleet.runtime.callbacks import ExperimentInfo as ExperimentInfo
    from hopfleet.runtime.callbacks import HopInfo as HopInfo
    from hopfleet.runtime.callbacks import TrialInfo as TrialInfo
    from hopfleet.runtime.callbacks import UnitInfo as UnitInfo
    from hopfleet.scheduler.dispatch import Policy as Policy
    from hopfleet.scheduler.progress import Progress as Progress
    from hopfleet.scheduler.progress import Save as Save
    from hopfleet.scheduler.slots import Assignment as Assignment
    from hopfleet.scheduler.slots import Slot as Slot
    from hopfleet.scheduler.view import ScheduleView as ScheduleView
    from hopfleet.search.base import Clone as Clone
    from hopfleet.search.base import Constraint as Constraint
    from hopfleet.search.base import Decision as Decision
    from hopfleet.search.base import Earlier as Earlier
    from hopfleet.search.base import Goal as Goal
    from hopfleet.search.base import Search as Search
    from hopfleet.search.base import Stop as Stop
    from hopfleet.search.base import Suggestion as Suggestion
    from hopfleet.search.base import Train as Train
    from hopfleet.search.stopping import StoppingRule as StoppingRule
    from hopfleet.store.base import JournalStore as JournalStore
    from hopfleet.store.base import Request as Request
    from hopfleet.store.base import RequestQueue as RequestQueue
    from hopfleet.store.base import Store as Store
    from hopfleet.store.base import VersionStore as VersionStore
    from hopfleet.store.folder import RunFolder as RunFolder
    from hopfleet.store.local import LocalStore as LocalStore
    from hopfleet.store.versions.forwarding import ForwardingVersions as ForwardingVersions
    from hopfleet.store.versions.local import Versions as Versions
    from hopfleet.trackers.base import Tracker as Tracker
    from hopfleet.worker import protocol as protocol
    from hopfleet.worker.interruption import Interruption as Interruption
    from hopfleet.worker.serving import carry_out as carry_out
    from hopfleet.worker.spec import Profile as Profile
    from hopfleet.worker.spec import WorkerSpec as WorkerSpec
    from hopfleet.worker.worker import Worker as Worker
else:
    __all__, __getattr__, __dir__ = lazy(__name__)
