"""Write a method of your own for `spacecl run`, `compare` and `tune`:

    spacecl check examples/own_method.py:L2Anchor
    spacecl run permuted-digits --method examples/own_method.py:L2Anchor --set options.strength=1
    spacecl compare permuted-digits --methods finetune,ewc,examples/own_method.py:L2Anchor --set L2Anchor.strength=1

docs/extending.md explains it line by line.
"""

from spacecl import Learned, Method
from spacecl.options import NonNegativeFloat, option, options


@options
class L2Anchor(Method):
    """Pull the weights towards those after the task before: EWC with the same importance for every weight."""

    strength: NonNegativeFloat = option(default=0.1, help="weight of the penalty")

    forgets = True  # weights move a little, and so do the networks of earlier tasks

    def learn(self, core, task):
        module = core.blueprint.build(core.initial_tensors(task.classes))

        def penalty(module):
            moves = [p - core.shared[name].to(p) for name, p in module.named_parameters() if name in core.shared]
            return self.strength * sum(move.square().sum() for move in moves)

        history = task.trainer.fit(module, task.train, task.valid, penalty=penalty if core.tasks else None)
        return Learned(core.replace_weights(core.blueprint.extract_tensors(module)), history)
