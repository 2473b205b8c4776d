"""hydra-grpo: GRPO with LoRA for vision-language models on multi-turn visual tasks, run from Hydra configs.

Reading order: types, interfaces, config, then engines/local (the loop), advantage, loss, rollout, policy.
"""
