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
 */
#ifndef MC_POLICY_WORTH_H
#define MC_POLICY_WORTH_H

#include "base/base.h"

#define MC_WORTH_USES    8u /* classes by uses: see mc_worth_class */
#define MC_WORTH_KINDS   8u /* by relation, and whether the last of its chain */
#define MC_WORTH_CLASSES (MC_WORTH_USES * MC_WORTH_KINDS)
#define MC_WORTH_AGES    40u
#define MC_WORTH_TICKS   64u /* per second */

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
    bool seen[MC_WORTH_CLASSES];
    double together; /* blocks that are used again at once, on average: one event, not many */
    float worth[MC_WORTH_CLASSES][MC_WORTH_AGES];
};

void mc_worth_init(struct mc_worth *w);
uint8_t mc_worth_class(unsigned uses, enum mc_relation relation, bool last);
/* The age that `ticks` belong to, searched from `from` on. */
uint8_t mc_worth_age(const struct mc_worth *w, uint32_t ticks, uint8_t from);
/* Computes worth[][] anew, and forgets a little of what was counted. */
void mc_worth_learn(struct mc_worth *w);

#endif
