"""Models that nobody has compared in stages with one process."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.pipeline.beyond_pipelines import CODE
from planc.checks.pipeline.support import split_pipeline
from planc.checks.pipeline.value_crosses_stages import CODE as VALUE_CROSSES
from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Diagnostic
from planc.vocab import MeshDim

SHOWN: frozenset[str] = frozenset(
    {
        "AXK1ForCausalLM",
        "AXK2ForCausalLM",
        "AfmoeForCausalLM",
        "ArceeForCausalLM",
        "AriaTextForCausalLM",
        "BailingHybridForCausalLM",
        "BartForCausalLM",
        "BeamForCausalLM",
        "BertGenerationDecoder",
        "BertLMHeadModel",
        "BigBirdForCausalLM",
        "BioGptForCausalLM",
        "BitNetForCausalLM",
        "Cohere2ForCausalLM",
        "Cohere2MoeForCausalLM",
        "CohereCompassForCausalLM",
        "CohereForCausalLM",
        "CwmForCausalLM",
        "Data2VecTextForCausalLM",
        "DbrxForCausalLM",
        "DeepseekV2ForCausalLM",
        "DeepseekV32ForCausalLM",
        "DeepseekV3ForCausalLM",
        "DiffLlamaForCausalLM",
        "DogeForCausalLM",
        "Dots1ForCausalLM",
        "Dots3NoteForCausalLM",
        "ElectraForCausalLM",
        "Ernie4_5ForCausalLM",
        "Ernie4_5_MoeForCausalLM",
        "ErnieForCausalLM",
        "Exaone4ForCausalLM",
        "ExaoneMoeForCausalLM",
        "FalconMambaForCausalLM",
        "FlexOlmoForCausalLM",
        "FlintForCausalLM",
        "GPT2LMHeadModel",
        "GPTBigCodeForCausalLM",
        "GPTNeoXForCausalLM",
        "Gemma2ForCausalLM",
        "Gemma3ForCausalLM",
        "Gemma4UnifiedForCausalLM",
        "GemmaForCausalLM",
        "Glm4ForCausalLM",
        "Glm4MoeForCausalLM",
        "Glm4MoeLiteForCausalLM",
        "GlmForCausalLM",
        "GptOssForCausalLM",
        "GraniteForCausalLM",
        "GraniteMoeForCausalLM",
        "GraniteMoeHybridForCausalLM",
        "GraniteMoeSWAForCausalLM",
        "GraniteMoeSharedForCausalLM",
        "GraniteSWAForCausalLM",
        "HYV3ForCausalLM",
        "HeliumForCausalLM",
        "HunYuanDenseV1ForCausalLM",
        "HunYuanMoEV1ForCausalLM",
        "HyperCLOVAXForCausalLM",
        "InklingForCausalLM",
        "Jais2ForCausalLM",
        "JambaForCausalLM",
        "KimiLinearForCausalLM",
        "Kolibri1ForCausalLM",
        "LagunaForCausalLM",
        "Lfm2ForCausalLM",
        "Lfm2MoeForCausalLM",
        "Lfm3ForCausalLM",
        "Llama4ForCausalLM",
        "LlamaForCausalLM",
        "MBartForCausalLM",
        "Mamba2ForCausalLM",
        "MambaForCausalLM",
        "MellumForCausalLM",
        "MiMoV2FlashForCausalLM",
        "MiniCPM3ForCausalLM",
        "MiniMaxForCausalLM",
        "MiniMaxM2ForCausalLM",
        "MiniMaxM3VLForCausalLM",
        "Ministral3ForCausalLM",
        "MinistralForCausalLM",
        "MistralForCausalLM",
        "MixtralForCausalLM",
        "ModernBertDecoderForCausalLM",
        "NanoChatForCausalLM",
        "NemotronForCausalLM",
        "OPTForCausalLM",
        "Olmo2ForCausalLM",
        "Olmo3ForCausalLM",
        "OlmoForCausalLM",
        "OlmoHybridForCausalLM",
        "OlmoeForCausalLM",
        "PLBartForCausalLM",
        "PersimmonForCausalLM",
        "Phi3ForCausalLM",
        "PhiForCausalLM",
        "PhimoeForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen3_5ForCausalLM",
        "Qwen3_5MoeForCausalLM",
        "RecurrentGemmaForCausalLM",
        "RobertaForCausalLM",
        "RobertaPreLayerNormForCausalLM",
        "SeedOssForCausalLM",
        "SmolLM3ForCausalLM",
        "SolarOpenForCausalLM",
        "StableLmForCausalLM",
        "Starcoder2ForCausalLM",
        "VaultGemmaForCausalLM",
        "XGLMForCausalLM",
        "XLMRobertaXLForCausalLM",
        "YoutuForCausalLM",
    }
)
"""Architectures whose row of `make models` has equal gradients under pp; a test holds the two together.

Other models' layers may return more than hidden states, or read modules of other stages while they run.
"""


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One error at `model`."""
    name = subject.inventory.architecture
    if split_pipeline(subject) is not None and name not in SHOWN:
        yield CODE.at(
            subject.plan.span("model"),
            f"{name} has not been compared with one process in stages",
            help="set `pp` to 1, or choose a model that was: `planc explain P320` says where they are",
        )


RULE = Rule((CODE,), check, over=MeshDim.PP, unless=(CODE, VALUE_CROSSES))
