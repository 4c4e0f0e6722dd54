// Work-items of a work-group that share the sums of a tile: a part of the input blocks each. So maps
// of few pixels have work-items enough for the whole GPU.
//
// TEAMS        how many share them, along the third dimension; a work-group has TEAM_ITEMS at most
// TEAM         which of them a work-item is; its blocks of inputs are from TEAM_FROM to TEAM_TO
// TEAM_PARTS   declares memory for so many sums, of which TEAM_PUT keeps what a team has of one;
//              behind a barrier TEAM_SUM is what all have, and each team finishes some: EACH_TEAM_SUM
#if defined(TEAMS) && TEAMS > 1
#define TEAM ((int)get_local_id(2))
#define TEAM_PARTS(count) __local float4 parts[(count) * TEAM_ITEMS];
#define TEAM_LANE ((int)(get_local_id(1) * get_local_size(0) + get_local_id(0)))
#define TEAM_PUT(i, sum) parts[((i) * TEAMS + TEAM) * (TEAM_ITEMS / TEAMS) + TEAM_LANE] = (sum)
#define TEAM_SUM(i) team_sum(parts + (i) * TEAM_ITEMS + TEAM_LANE)
#define EACH_TEAM_SUM(i, count) for (int i = TEAM; i < (count); i += TEAMS)
static float4 team_sum(__local const float4 *parts)
{
    float4 sum = parts[0];
    UNROLL for (int team = 1; team < TEAMS; team++) sum += parts[team * (TEAM_ITEMS / TEAMS)];
    return sum;
}
#else
#define TEAMS 1
#define TEAM 0
#endif
#define TEAM_FROM(blocks) (TEAM * (blocks) / TEAMS)
#define TEAM_TO(blocks) ((TEAM + 1) * (blocks) / TEAMS)
