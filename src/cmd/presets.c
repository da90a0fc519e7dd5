/*
 * Model presets. See cmd/presets.h.
 *
 * Bytes of a token = layers x (keys + values) x KV heads x head size x 2; for latent attention
 * layers x (latent + rotary) x 2. The numbers are of the models' published configurations.
 */
#include "cmd/presets.h"

#define GROUPED(layers, kv_heads, head) ((layers)*2ull * (kv_heads) * (head)*2)
#define LATENT(layers, latent, rotary)  ((layers) * ((latent) + (rotary)) * 2ull)

static const struct mc_model_preset presets[] = {
    {"demo", 32, "small blocks, so that a whole trace fits the memory of a laptop"},
    {"llama-3.1-8b", GROUPED(32, 8, 128), "32 layers, 8 KV heads of 128"},
    {"llama-3.1-70b", GROUPED(80, 8, 128), "80 layers, 8 KV heads of 128"},
    {"qwen2.5-7b", GROUPED(28, 4, 128), "28 layers, 4 KV heads of 128"},
    {"qwen3-32b", GROUPED(64, 8, 128), "64 layers, 8 KV heads of 128"},
    {"deepseek-v3", LATENT(61, 512, 64), "61 layers of latent attention, 512 + 64"},
    {"kimi-k2", LATENT(61, 512, 64), "61 layers of latent attention, 512 + 64"},
};

const struct mc_model_preset *mc_model_preset_find(const char *name) {
    for (size_t i = 0; i < MC_ARRAY_LEN(presets); i++) {
        if (strcmp(name, presets[i].name) == 0) {
            return &presets[i];
        }
    }
    return NULL;
}
