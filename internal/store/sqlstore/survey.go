package sqlstore

import (
	"context"
	"time"
)

// The tables that grow with the runs.
const surveyed = "runs, steps, drafts, planned_effects, approvals, decisions, challenges, effects, effect_order, attempts, messages, events"

// PostgreSQL plans a prepared statement once and keeps the plan until the statistics change. What it plans over tables
// that are empty suits no other day: it takes any index that begins with the tenant. So a store has its tables surveyed
// when it has written this many events, and again after each time firstSurvey*surveyGrowth^n; once the server knows that
// they are large, its own autovacuum is enough.
const (
	firstSurvey  = 16
	surveyGrowth = 8
	large        = 100_000
	surveyTime   = 30 * time.Second
)

// survey refreshes the statistics while the tables are young, until the store is closed.
func (s *Store) survey(ctx context.Context) {
	for next := int64(firstSurvey); ; next *= surveyGrowth {
		for s.written.Load() < next {
			select {
			case <-s.grown:
			case <-ctx.Done():
				return
			}
		}
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), surveyTime)
		known := 0.0
		err := s.write.QueryRowContext(within, "SELECT CAST(reltuples AS DOUBLE PRECISION) FROM pg_class WHERE oid = CAST('events' AS regclass)").Scan(&known)
		if err == nil && known < large {
			_, err = s.write.ExecContext(within, "ANALYZE "+surveyed)
		}
		cancel()
		if err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "statistics not refreshed; PostgreSQL refreshes them itself within minutes", "error", err)
		}
		if known >= large {
			return
		}
	}
}

// wrote counts events that a commit has made durable.
func (s *Store) wrote(events int) {
	if !s.postgres || events == 0 {
		return
	}
	s.written.Add(int64(events))
	select {
	case s.grown <- struct{}{}:
	default: // it will look anyway
	}
}
