/*
 * What a block is worth: learned from how soon blocks of its class were used again.
 *
 * For each class and age (time since the last use, in half octaves) it counts uses and the time
 * that blocks spent there, gone ones included; their ratio is the hazard, the rate of coming back.
 * The worth of a block at some age is the best rate of hits for room that keeping it can give:
 *
 *     max over h of  P(used within h | not yet)  /  E[time kept until then, at most h]
 *
 * which is the Gittins index of that block, and giving up the lowest one is as good as any rule can
 * be that knows no more than the hazards. A newcomer that comes back late, if ever, may be worth
 * less than an old block that is about to be used; then newcomers go first, without a special rule.
 *
 * Few counts lie, and a wrong order loses more than a right one gains. So a class starts from the
 * hazard of classes with as many uses, those from the hazard of all, and that one from 1/age, for
 * which the order is that of least recent use; neighbouring ages are smoothed; and what was used
 * more often is not worth less, which keeps the head of a chain behind its end, until many uses
 * that should have come did not.
 *
 * A use saves what it costs to recompute the block, and attention makes that dearer the further
 * along the chain it is: 1 + p / attention_blocks at place p. An end is no use without its head and
 * costs more than it, so a chain is best kept whole or not at all, and each of its blocks counts
 * with the mean of their costs: 1 + length / (2 * attention_blocks). Blocks of long requests may
 * come back less or more often than others of their class, so costs alone would mislead: the rate
 * of each length (an octave) beside what the classes foresee is learned too, and half believed (its
 * root), for a part of it is in the classes already. Size falls out: what a block costs and the
 * room that it takes both grow with its tokens.
 */
#ifndef MC_POLICY_WORTH_H
#define MC_POLICY_WORTH_H

#include "base/base.h"

#define MC_WORTH_USES    8u /* classes by uses: see mc_worth_class */
#define MC_WORTH_KINDS   8u /* by relation, and whether the last of its chain */
#define MC_WORTH_CLASSES (MC_WORTH_USES * MC_WORTH_KINDS)
#define MC_WORTH_AGES    40u
#define MC_WORTH_TICKS   64u /* per second */
#define MC_WORTH_LENGTHS 10u /* of requests, in octaves from 4 blocks on */

/* How the last request that used a block stands to those before. 0 = not known. */
enum mc_relation {
    MC_RELATION_NEW = 1, /* nothing of it was known, but at most a first block that all share */
    MC_RELATION_BRANCH,  /* leaves a prefix that others have continued too: a shared prompt */
    MC_RELATION_REPEAT,  /* nearly all of it was known */
    MC_RELATION_NEXT,    /* continues what nobody else has: the next turn of a conversation */
};

struct mc_worth {
    uint32_t start[MC_WORTH_AGES + 1]; /* ticks at which an age begins */
    double used[MC_WORTH_CLASSES][MC_WORTH_AGES];
    double spent[MC_WORTH_CLASSES][MC_WORTH_AGES]; /* ticks */
    double together; /* blocks that are used again at once, on average: one event, not many */
    double hazard[MC_WORTH_CLASSES][MC_WORTH_AGES];
    double length_used[MC_WORTH_LENGTHS], length_foreseen[MC_WORTH_LENGTHS];
    double length_factor[MC_WORTH_LENGTHS]; /* of worth[][], by the length of the request */
    double attention_blocks;                /* 0 = all blocks cost the same */
    float worth[MC_WORTH_CLASSES][MC_WORTH_AGES];
};

void mc_worth_init(struct mc_worth *w, double attention_blocks);
uint8_t mc_worth_class(unsigned uses, enum mc_relation relation, bool last);
/* The age that `ticks` belong to, searched from `from` on. */
uint8_t mc_worth_age(const struct mc_worth *w, uint32_t ticks, uint8_t from);
uint8_t mc_worth_length(size_t blocks);
/* A block of this class, length and age was used; it spent `ticks` in that age. */
static inline void mc_worth_used(struct mc_worth *w, uint8_t class, uint8_t length, uint8_t age) {
    w->used[class][age] += 1;
    w->length_used[length] += 1;
}
static inline void mc_worth_spent(struct mc_worth *w, uint8_t class, uint8_t length, unsigned age,
                                  uint32_t ticks) {
    w->spent[class][age] += ticks;
    w->length_foreseen[length] += ticks * w->hazard[class][age];
}
/* Computes worth[][] and length_factor[] anew, and forgets a little of what was counted. */
void mc_worth_learn(struct mc_worth *w);

#endif
