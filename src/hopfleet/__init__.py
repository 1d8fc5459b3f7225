"""Hopfleet finds the best deep-learning model for your data. Each name is loaded when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopfleet.support.lazy import lazy

ELSEWHERE = {
    **dict.fromkeys(
        ("compare", "create_study", "fit", "optimize", "run", "Study", "study", "Tune", "tune", "Tuner"),
        "hop.Experiment(task, train=..., space=..., search=...).fit()",
    ),
    **dict.fromkeys(("BayesSearchCV", "GridSearchCV", "RandomizedSearchCV"), "hop.HopSearchCV(...)"),
    **dict.fromkeys(("Dataloader", "DataLoader", "TensorDataset"), "train=(X, y), or hop.partition(data, FOLDER)"),
    **dict.fromkeys(("EarlyStopping", "early_stopping"), "stop=hop.Patience(epochs=3)"),
    **dict.fromkeys(("report", "log", "log_metrics"), "metrics(self, model, batch) in the task, which returns a dict"),
    **dict.fromkeys(("ASHAScheduler", "AsyncHyperBandScheduler"), "hop.ASHA(...)"),
    **dict.fromkeys(("MedianPruner", "MedianStoppingRule"), "stop=hop.Median()"),
    "PopulationBasedTraining": "hop.PBT(...)",
    "suggest_float": "hop.uniform(low, high) or hop.loguniform(low, high)",
    "suggest_int": "hop.randint(low, high)",
    "suggest_categorical": "hop.choice([...])",
    **dict.fromkeys(("RandomSampler", "RandomSearch"), "hop.Random(...)"),
    **dict.fromkeys(("GridSampler", "GridSearch"), "hop.Grid(...)"),
    **dict.fromkeys(("OptunaSearch", "TPESampler"), "hop.TPE(...)"),
}
"""Names of other libraries: what to write instead."""

if TYPE_CHECKING:
    from hopfleet.backends.inline import Inline as Inline
    from hopfleet.backends.local.backend import Local as Local
    from hopfleet.backends.ray.backend import Ray as Ray
    from hopfleet.clients.search_cv import HopSearchCV as HopSearchCV
    from hopfleet.data import Dataset as Dataset
    from hopfleet.data import live as live
    from hopfleet.data import open_dataset as open_dataset
    from hopfleet.data import pad as pad
    from hopfleet.data import partition as partition
    from hopfleet.data.etl import Category as Category
    from hopfleet.data.etl import Counts as Counts
    from hopfleet.data.etl import Date as Date
    from hopfleet.data.etl import ETLSpec as ETLSpec
    from hopfleet.data.etl import Files as Files
    from hopfleet.data.etl import Images as Images
    from hopfleet.data.etl import Label as Label
    from hopfleet.data.etl import Moments as Moments
    from hopfleet.data.etl import Number as Number
    from hopfleet.data.etl import Quantiles as Quantiles
    from hopfleet.data.etl import Query as Query
    from hopfleet.data.etl import Recipe as Recipe
    from hopfleet.data.etl import Split as Split
    from hopfleet.data.etl import Tabular as Tabular
    from hopfleet.data.etl import Text as Text
    from hopfleet.data.etl import first_rows as first_rows
    from hopfleet.data.etl import load_recipe as load_recipe
    from hopfleet.data.etl import prepare as prepare
    from hopfleet.data.etl import split as split
    from hopfleet.domain.secrets import secret as secret
    from hopfleet.domain.space import choice as choice
    from hopfleet.domain.space import grid_search as grid_search
    from hopfleet.domain.space import lograndint as lograndint
    from hopfleet.domain.space import loguniform as loguniform
    from hopfleet.domain.space import normal as normal
    from hopfleet.domain.space import qloguniform as qloguniform
    from hopfleet.domain.space import quniform as quniform
    from hopfleet.domain.space import randint as randint
    from hopfleet.domain.space import sample_from as sample_from
    from hopfleet.domain.space import uniform as uniform
    from hopfleet.domain.trial import TrialState as TrialState
    from hopfleet.errors import AllTrialsFailed as AllTrialsFailed
    from hopfleet.errors import HopfleetError as HopfleetError
    from hopfleet.errors import Interrupted as Interrupted
    from hopfleet.experiment.experiment import Experiment as Experiment
    from hopfleet.experiment.options import RunOptions as RunOptions
    from hopfleet.experiment.options import WorkerOptions as WorkerOptions
    from hopfleet.forecast.preview import Preview as Preview
    from hopfleet.frameworks.jax.task import JaxTask as JaxTask
    from hopfleet.frameworks.keras.task import KerasFunctionTask as KerasFunctionTask
    from hopfleet.frameworks.keras.task import KerasTask as KerasTask
    from hopfleet.frameworks.lightning.task import LightningTask as LightningTask
    from hopfleet.frameworks.sklearn.task import SklearnTask as SklearnTask
    from hopfleet.frameworks.torch.capturable import capturable as capturable
    from hopfleet.frameworks.torch.sub_epoch import SubEpochSpec as SubEpochSpec
    from hopfleet.frameworks.torch.task import FunctionTask as FunctionTask
    from hopfleet.frameworks.torch.task import TorchTask as TorchTask
    from hopfleet.frameworks.transformers.task import TransformersTask as TransformersTask
    from hopfleet.frameworks.whole_set import WholeSet as WholeSet
    from hopfleet.runs.bundle import Bundle as Bundle
    from hopfleet.runs.bundle import load_bundle as load_bundle
    from hopfleet.runs.control import Control as Control
    from hopfleet.runs.control import control as control
    from hopfleet.runs.ensemble import Ensemble as Ensemble
    from hopfleet.runs.results import Results as Results
    from hopfleet.runs.results import load as load
    from hopfleet.runs.trial_result import TrialResult as TrialResult
    from hopfleet.runs.weights import state_dict as state_dict
    from hopfleet.runtime.callbacks import Callback as Callback
    from hopfleet.search.asha import ASHA as ASHA
    from hopfleet.search.base import Clone as Clone
    from hopfleet.search.base import Search as Search
    from hopfleet.search.base import Stop as Stop
    from hopfleet.search.base import Suggestion as Suggestion
    from hopfleet.search.base import Train as Train
    from hopfleet.search.freeze_thaw import FreezeThaw as FreezeThaw
    from hopfleet.search.grid import Grid as Grid
    from hopfleet.search.halving import SuccessiveHalving as SuccessiveHalving
    from hopfleet.search.hyperband import Hyperband as Hyperband
    from hopfleet.search.optuna import CMAES as CMAES
    from hopfleet.search.optuna import GP as GP
    from hopfleet.search.optuna import NSGA2 as NSGA2
    from hopfleet.search.optuna import TPE as TPE
    from hopfleet.search.optuna import Optuna as Optuna
    from hopfleet.search.pbt import PBT as PBT
    from hopfleet.search.random import Random as Random
    from hopfleet.search.stopping import Budget as Budget
    from hopfleet.search.stopping import Median as Median
    from hopfleet.search.stopping import Patience as Patience
    from hopfleet.search.stopping import Rule as Rule
    from hopfleet.search.stopping import Stopping as Stopping
    from hopfleet.search.stopping import StoppingRule as StoppingRule
    from hopfleet.simulation.backend import Simulated as Simulated
    from hopfleet.simulation.simulator import simulate as simulate
    from hopfleet.version import __version__ as __version__
else:
    __all__, __getattr__, __dir__ = lazy(__name__, ELSEWHERE)
