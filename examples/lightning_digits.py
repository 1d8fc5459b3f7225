"""An ordinary LightningModule on handwritten digits, with its data module: which learning rate and width are best?

Run this example with `python examples/lightning_digits.py`.
"""

import lightning as L
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

import hopfleet as hop


class Net(L.LightningModule):
    def __init__(self, width, lr):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 10))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = torch.nn.functional.cross_entropy(self.net(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("accuracy", (self.net(x).argmax(1) == y).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams["lr"])
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "epoch"}}


class Data(L.LightningDataModule):
    def setup(self, stage):
        digits = load_digits()
        order = torch.randperm(len(digits.data), generator=torch.Generator().manual_seed(0))
        x, y = torch.tensor(digits.data[order] / 16).float(), torch.tensor(digits.target[order])
        self.train, self.valid = TensorDataset(x[:1400], y[:1400]), TensorDataset(x[1400:], y[1400:])

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=32, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.valid, batch_size=32)


class Digits(hop.LightningTask):
    def build(self, config):  # the module of one configuration; Hopfleet runs its steps
        return Net(width=config["width"], lr=config["lr"])


results = hop.Experiment(
    Digits(),
    **hop.LightningTask.data(Data()),
    space={"lr": hop.loguniform(1e-3, 1e-1), "width": hop.choice([64, 256])},
    search=hop.Random(trials=4, max_epochs=3),
    metric="accuracy",
    mode="max",
    batch_size=32,
    workers=1,
    seed=7,
).fit()

print("best:", results.best.config, results.best.metrics)
print("its module:", results.best.model())
