/* See worth.h. */
#include "policy/worth.h"

#include <math.h>
#include <stdlib.h>

#define SMOOTH        3    /* ages on either side */
#define PRIOR         3.0  /* events that a hazard of its own has to outweigh */
#define PRIOR_RATE    5.0  /* the same for the level of a class */
#define KEPT          0.98 /* of the counts, from one learning to the next */
#define HAZARD_MIN    0.01
#define TOGETHER_FROM 20.0
#define PRIOR_LENGTH  10.0
#define DOUBT_EVENTS                                                                               \
    10.0           /* that must have failed to come before a class is worth less than ...          \
                    */
#define DOUBT 0.25 /* ... one that was used less often, and by how much less */

void mc_worth_init(struct mc_worth *w, double attention_blocks) {
    *w = (struct mc_worth){.together = TOGETHER_FROM, .attention_blocks = attention_blocks};
    for (unsigned a = 1; a <= MC_WORTH_AGES; a++) {
        w->start[a] = (uint32_t)(MC_WORTH_TICKS * pow(2, (a - 1) / 2.0));
    }
}

uint8_t mc_worth_class(unsigned uses, enum mc_relation relation, bool last) {
    static const uint8_t most[MC_WORTH_USES - 1] = {0, 1, 2, 4, 8, 16, 64};
    unsigned u = 0;
    while (u < MC_WORTH_USES - 1 && uses > most[u]) {
        u++;
    }
    unsigned kind = (unsigned)(relation - 1) * 2 + !last;
    return (uint8_t)(u * MC_WORTH_KINDS + kind);
}

uint8_t mc_worth_length(size_t blocks) {
    unsigned octave = 0;
    while (octave + 1 < MC_WORTH_LENGTHS && blocks >= 8ull << octave) {
        octave++;
    }
    return (uint8_t)octave;
}

uint8_t mc_worth_age(const struct mc_worth *w, uint32_t ticks, uint8_t from) {
    while (from + 1u < MC_WORTH_AGES && ticks >= w->start[from + 1]) {
        from++;
    }
    return from;
}

/* ---- hazards ---- */

/* The factor by which a hazard differs from `expected`, at each age and from its neighbours. */
static void smooth(const struct mc_worth *w, const double *used, const double *spent,
                   const double *expected, double level, double prior, double *hazard) {
    for (int a = 0; a < (int)MC_WORTH_AGES; a++) {
        double seen = prior, foreseen = prior;
        for (int k = -SMOOTH; k <= SMOOTH; k++) {
            int b = a + k;
            if (b >= 0 && b < (int)MC_WORTH_AGES) {
                double weight = 1 - abs(k) / (SMOOTH + 1.0);
                seen += weight * used[b];
                foreseen += weight * spent[b] * expected[b] * level;
            }
        }
        hazard[a] = expected[a] * level * seen / foreseen;
    }
}

/* Of all classes together. */
static void hazard_of_all(const struct mc_worth *w, double *hazard) {
    double used[MC_WORTH_AGES] = {0}, spent[MC_WORTH_AGES] = {0}, reciprocal[MC_WORTH_AGES];
    double events = 0, foreseen = 0;
    for (unsigned a = 0; a < MC_WORTH_AGES; a++) {
        for (unsigned c = 0; c < MC_WORTH_CLASSES; c++) {
            used[a] += w->used[c][a];
            spent[a] += w->spent[c][a];
        }
        reciprocal[a] = 1.0 / (w->start[a] + w->start[1]);
        events += used[a];
        foreseen += spent[a] * reciprocal[a];
    }
    double level = foreseen > 0 ? fmax(events / foreseen, HAZARD_MIN) : HAZARD_MIN;
    smooth(w, used, spent, reciprocal, level, PRIOR * w->together / 2, hazard);
}

/* How much more than `hazard` says was used in classes first … last, starting from `from`. */
static double level_of(const struct mc_worth *w, unsigned first, unsigned last,
                       const double *hazard, double from) {
    double foreseen = PRIOR_RATE * w->together, used = from * foreseen;
    for (unsigned c = first; c <= last; c++) {
        for (unsigned a = 0; a < MC_WORTH_AGES; a++) {
            used += w->used[c][a];
            foreseen += w->spent[c][a] * hazard[a];
        }
    }
    return used / foreseen;
}

/* ---- worth ---- */

static void index_of(const struct mc_worth *w, const double *hazard, float *worth) {
    double comes[MC_WORTH_AGES];
    for (unsigned a = 0; a + 1 < MC_WORTH_AGES; a++) {
        comes[a] = 1 - exp(-hazard[a] * (w->start[a + 1] - w->start[a]));
    }
    for (unsigned a = 0; a < MC_WORTH_AGES; a++) {
        double best = 0, left = 1, hits = 0, room = 0;
        for (unsigned k = a; k + 1 < MC_WORTH_AGES && left > 1e-4; k++) {
            hits += left * comes[k];
            room += left * comes[k] / hazard[k];
            left *= 1 - comes[k];
            best = fmax(best, hits / room);
        }
        worth[a] = (float)best;
    }
}

/* Used more often is not worth less, unless that is beyond doubt; and the last of a chain is never
 * worth more than those before it. hazard[] is that of each class. */
static void keep_order(struct mc_worth *w, const double (*hazard)[MC_WORTH_AGES]) {
    for (unsigned c = MC_WORTH_KINDS; c < MC_WORTH_CLASSES; c++) {
        unsigned less = c - MC_WORTH_KINDS;
        double foreseen = 0; /* uses, if it were as the class that was used less often */
        for (unsigned a = 0; a < MC_WORTH_AGES; a++) {
            foreseen += w->spent[c][a] * hazard[less][a];
        }
        bool known = foreseen >= DOUBT_EVENTS * w->together;
        for (unsigned a = 0; a < MC_WORTH_AGES; a++) {
            if (!known || w->worth[c][a] >= DOUBT * w->worth[less][a]) {
                w->worth[c][a] = fmaxf(w->worth[c][a], w->worth[less][a]);
            }
        }
    }
    for (unsigned c = 0; c < MC_WORTH_CLASSES; c += 2) {
        for (unsigned a = 0; a < MC_WORTH_AGES; a++) {
            w->worth[c][a] = fminf(w->worth[c][a], w->worth[c + 1][a]);
        }
    }
}

static void learn_lengths(struct mc_worth *w) {
    double prior = PRIOR_LENGTH * w->together;
    for (unsigned l = 0; l < MC_WORTH_LENGTHS; l++) {
        double rate = (w->length_used[l] + prior) / (w->length_foreseen[l] + prior);
        double blocks = 4 * M_SQRT2 * (1u << l); /* the middle of its octave */
        double cost = w->attention_blocks > 0 ? 1 + blocks / 2 / w->attention_blocks : 1;
        w->length_factor[l] = sqrt(rate) * cost;
        w->length_used[l] *= KEPT;
        w->length_foreseen[l] *= KEPT;
    }
}

void mc_worth_learn(struct mc_worth *w) {
    double all[MC_WORTH_AGES], (*hazard)[MC_WORTH_AGES] = w->hazard;
    hazard_of_all(w, all);
    for (unsigned u = 0; u < MC_WORTH_USES; u++) {
        unsigned first = u * MC_WORTH_KINDS;
        double alike = level_of(w, first, first + MC_WORTH_KINDS - 1, all, 1);
        for (unsigned c = first; c < first + MC_WORTH_KINDS; c++) {
            smooth(w, w->used[c], w->spent[c], all, level_of(w, c, c, all, alike),
                   PRIOR * w->together, hazard[c]);
            index_of(w, hazard[c], w->worth[c]);
        }
    }
    keep_order(w, hazard);
    learn_lengths(w);
    for (unsigned c = 0; c < MC_WORTH_CLASSES; c++) {
        for (unsigned a = 0; a < MC_WORTH_AGES; a++) {
            w->used[c][a] *= KEPT;
            w->spent[c][a] *= KEPT;
        }
    }
}
