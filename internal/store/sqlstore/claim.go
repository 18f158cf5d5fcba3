package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// The bounds of a claim.
const (
	maxClaims = 1000        // of one call
	notedEach = 20          // duplicates and mismatches of a run that become events one by one; the statements say it too
	sweptSoon = time.Second // retry-after of a run that no claim may take and the sweeper has yet to end
)

// ClaimRuns implements store.Runs.
func (s *Store) ClaimRuns(ctx context.Context, claims []store.Claim) ([]store.ClaimResult, error) {
	if len(claims) == 0 {
		return nil, nil
	}
	if len(claims) > maxClaims {
		return nil, holdpoint.Errorf(holdpoint.CodeInvalidRequest, "at most %d claims go into one statement; send fewer", maxClaims)
	}
	// Every replica locks rows in the order of their identity, so that two batches cannot wait for each other.
	order := make([]int, len(claims))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return identityOf(claims[a]).compare(identityOf(claims[b]))
	})
	sorted := make([]store.Claim, len(claims))
	for i, n := range order {
		sorted[i] = claims[n]
	}
	var results map[identity]store.ClaimResult
	err := s.do(ctx, "ClaimRuns", func(t *tx) error {
		results = make(map[identity]store.ClaimResult, len(claims))
		// One instant for all rows and for both statements. It is not later than any lock, so a row that moves while this
		// waits for it looks newer than the claim, never older: a lease or retry time that is not over is never taken.
		now, err := t.now(ctx)
		if err != nil {
			return err
		}
		won, err := t.claim(ctx, now, sorted, results)
		if err != nil {
			return err
		}
		counted, err := t.countClaims(ctx, now, sorted, results)
		if err != nil {
			return err
		}
		return t.record(ctx, now, append(won, counted...)...)
	})
	if err != nil {
		return nil, err
	}
	answers := make([]store.ClaimResult, len(claims))
	for i, c := range claims {
		answers[i] = results[identityOf(c)]
	}
	return answers, nil
}

// identity is what a run is unique by.
type identity struct{ tenant, scope, hmac string }

func (i identity) compare(j identity) int {
	return cmp.Or(strings.Compare(i.tenant, j.tenant), strings.Compare(i.scope, j.scope), strings.Compare(i.hmac, j.hmac))
}

func identityOf(c store.Claim) identity { return identity{c.Tenant, c.Scope, c.KeyHMAC} }

// newRuns are the columns of a run's first row.
var newRuns = columns(`tenant text, id text, workflow text, scope text, key text, key_hmac text, key_flag text, operation text, record text,
 fingerprint text, fingerprint_rule text, ignore_pointers text, policy_hash text, lease_owner text, execution_id text, trigger_source text,
 workflow_version text, delivery_id text, run_key bytes, payload bytes, initiator bytes, resume_url bytes, state text, reason text, version bigint,
 attempts bigint, attempt_limit bigint, round bigint, steal_cap bigint, duplicates bigint, duplicates_noted bigint, last_duplicate bigint,
 lease_expires_at bigint, lease_cap_at bigint, claimed_at bigint, retry_at bigint, budget_until bigint, event_seq bigint, created_at bigint, updated_at bigint`)

// newRun is the row of a new run: one that its claim works on, with room for the event of that claim, or one that is
// due for any claim.
func newRun(c store.Claim, now time.Time, claimed bool) []any {
	at := now.UnixMicro()
	var operation, record, duplicate any
	if c.Operation != nil {
		operation, record = text(c.Operation), c.Operation.Record
	}
	if c.Extra > 0 {
		duplicate = at
	}
	ignore := "[]"
	if len(c.Ignore) > 0 {
		ignore = text(c.Ignore)
	}
	row := []any{c.Tenant, c.RunID, c.Workflow, c.Scope, c.Key, c.KeyHMAC, c.KeyFlag, operation, record,
		c.Fingerprint, c.FingerprintRule, ignore, c.PolicyHash, c.Owner, c.ExecutionID, c.TriggerSource,
		c.WorkflowVersion, c.DeliveryID, c.RunKey, c.Payload, c.Initiator, c.ResumeURL, string(holdpoint.RunProcessing), "", int64(1),
		int64(1), int64(c.AttemptLimit), int64(1), int64(c.StealCap), int64(c.Extra), int64(min(c.Extra, notedEach)), duplicate,
		at + micros(min(c.Lease, c.Cap)), at + micros(c.Cap), at, nil, at + micros(c.Budget), int64(1), at, at}
	if !claimed {
		for name, v := range map[string]any{"lease_owner": "", "execution_id": "", "state": string(holdpoint.RunFailedRetryable), "attempts": int64(0),
			"lease_expires_at": nil, "lease_cap_at": nil, "claimed_at": nil, "retry_at": at, "event_seq": int64(0)} {
			row[slices.Index(newRuns.names, name)] = v
		}
	}
	return row
}

// insertRuns inserts the rows of v in the order of claims.
var insertRuns = " INSERT INTO runs (" + newRuns.list() + ") SELECT " + newRuns.list() + " FROM v WHERE true ORDER BY tenant, scope, key_hmac"

// claimRows inserts or takes over; it is the only statement that gives a lease.
//
// Races: of any number of simultaneous claims of one key exactly one inserts the row, and of any number of claims of one
// recoverable run exactly one satisfies WHERE, because both databases evaluate it on the latest committed row under that
// row's lock. A claim that does not satisfy it holds the lock all the same, so the row cannot move before it is answered.
// An owner whose lease was taken over holds a version that is gone.
const claimRows = ` ON CONFLICT (tenant, scope, key_hmac) DO UPDATE SET
 reason = CASE WHEN runs.state = 'processing' THEN 'expired_lease' WHEN runs.reason = 'sent_back' THEN 'sent_back' ELSE 'retry_due' END,
 steals = runs.steals + CASE WHEN runs.state = 'processing' THEN 1 ELSE 0 END,
 state = 'processing', failure_class = '', version = runs.version + 1, attempts = runs.attempts + 1, policy_hash = excluded.policy_hash,
 lease_owner = excluded.lease_owner, lease_expires_at = excluded.lease_expires_at, lease_cap_at = excluded.lease_cap_at,
 claimed_at = excluded.claimed_at, execution_id = excluded.execution_id, trigger_source = excluded.trigger_source,
 workflow_version = excluded.workflow_version, delivery_id = excluded.delivery_id, attempt_limit = excluded.attempt_limit,
 steal_cap = excluded.steal_cap, duplicates = runs.duplicates + excluded.duplicates,
 duplicates_noted = CASE WHEN runs.duplicates + excluded.duplicates <= 20 THEN runs.duplicates + excluded.duplicates
  WHEN runs.duplicates_noted < 20 THEN 20 ELSE runs.duplicates_noted END,
 last_duplicate = COALESCE(excluded.last_duplicate, runs.last_duplicate),
 retry_at = NULL, claimable_noted = 0, last_call = '', updated_at = excluded.updated_at,
 event_seq = runs.event_seq + CASE WHEN runs.state = 'processing' THEN 2 ELSE 1 END
 WHERE runs.fingerprint = excluded.fingerprint AND runs.fingerprint_rule = excluded.fingerprint_rule AND runs.budget_until > excluded.claimed_at
 AND (runs.state = 'failed_retryable' AND runs.retry_at <= excluded.claimed_at AND runs.attempts < runs.attempt_limit
  OR runs.state = 'processing' AND runs.lease_expires_at <= excluded.claimed_at AND runs.steals < runs.steal_cap)
 RETURNING ` + runColumns + `, runs.key_hmac, runs.event_seq`

// claim runs the claim statement, puts the claims that won into results and gives their events.
func (t *tx) claim(ctx context.Context, now time.Time, claims []store.Claim, results map[identity]store.ClaimResult) ([]event, error) {
	rows := make([][]any, len(claims))
	for i, c := range claims {
		rows[i] = newRun(c, now, true)
	}
	type winner struct {
		run  holdpoint.Run
		hmac string
		seq  int64
	}
	var won []winner
	err := t.each(newRuns, rows, nil, func(with string, args []any) error {
		returned, err := t.QueryContext(ctx, with+insertRuns+claimRows, args...)
		some, err := collect(returned, err, func(row scanner) (w winner, err error) {
			w.run, err = scanRun(row, &w.hmac, &w.seq)
			return w, err
		})
		won = append(won, some...)
		return err
	})
	if err != nil {
		return nil, err
	}
	winners := make(map[identity]winner, len(won))
	for _, w := range won {
		winners[identity{w.run.Tenant, w.run.Scope, w.hmac}] = w
	}
	var events []event
	for _, c := range claims {
		w, ok := winners[identityOf(c)]
		if !ok {
			continue
		}
		r := store.ClaimResult{Outcome: holdpoint.Claimed, Run: w.run, Lease: lease(w.run), Now: now}
		if w.run.Version > 1 { // taken over: a new row has version 1
			r.RecoveredFrom = string(holdpoint.RunFailedRetryable)
			if w.run.Reason == holdpoint.ReasonExpiredLease {
				r.RecoveredFrom = string(holdpoint.ReasonExpiredLease)
			}
		}
		results[identityOf(c)] = r
		claimed := claimedEvents(c, r)
		for i := range claimed { // the statement has counted them
			claimed[i].seq = w.seq - int64(len(claimed)-1-i)
		}
		events = append(events, claimed...)
		events = append(events, duplicateEvents(c, r.Run, c.Extra, holdpoint.Busy)...)
	}
	return events, nil
}

func claimedEvents(c store.Claim, r store.ClaimResult) []event {
	how := "new"
	if r.RecoveredFrom != "" {
		how = "recovered"
	}
	data := map[string]any{"how": how, "version": r.Run.Version, "round": r.Run.Round, "attempt": r.Run.Attempts, "owner": r.Run.LeaseOwner,
		"fingerprint": r.Run.Fingerprint, "policy_version": r.Run.PolicyHash, "lease_expires_at": r.Run.LeaseExpiresAt}
	for name, v := range map[string]string{"recovered_from": r.RecoveredFrom, "execution_id": c.ExecutionID,
		"trigger_source": c.TriggerSource, "workflow_version": c.WorkflowVersion, "delivery_id": c.DeliveryID} {
		if v != "" {
			data[name] = v
		}
	}
	events := []event{{tenant: c.Tenant, run: r.Run.ID, kind: "run.claimed", who: c.Who, data: data}}
	if r.Run.Reason == holdpoint.ReasonExpiredLease {
		events = append(events, event{tenant: c.Tenant, run: r.Run.ID, kind: "run.stolen", who: c.Who,
			data: map[string]any{"steals": r.Run.Steals, "steal_cap": r.Run.StealCap, "version": r.Run.Version}})
	}
	return events
}

// countRows counts deliveries that did not win and gives the row that answers them.
//
// Races: the claim statement has locked these rows, so no other transaction moves them between the two statements and
// the answer is true of the verb's one instant ($1). A repeat by the owner that holds the live lease is a lost answer: it is no
// duplicate and moves nothing. Under another fingerprint rule nothing is decided, so nothing is counted.
const countRows = ` UPDATE runs SET
 duplicates = runs.duplicates + ` + isDuplicate + `,
 duplicates_noted = CASE WHEN runs.duplicates + ` + isDuplicate + ` <= 20 THEN runs.duplicates + ` + isDuplicate + `
  WHEN runs.duplicates_noted < 20 THEN 20 ELSE runs.duplicates_noted END,
 last_duplicate = CASE WHEN ` + isDuplicate + ` > 0 THEN CAST($1 AS BIGINT) ELSE runs.last_duplicate END,
 mismatches = runs.mismatches + CASE WHEN runs.fingerprint_rule = v.rule AND runs.fingerprint <> v.fingerprint THEN v.n ELSE 0 END
 FROM v WHERE runs.tenant = v.tenant AND runs.scope = v.scope AND runs.key_hmac = v.key_hmac
 RETURNING ` + runColumns + `, runs.key_hmac`

const isDuplicate = `CASE WHEN runs.fingerprint_rule <> v.rule OR runs.fingerprint <> v.fingerprint THEN 0
  WHEN runs.state = 'processing' AND runs.lease_expires_at > CAST($1 AS BIGINT) AND runs.lease_owner = v.owner AND runs.execution_id = v.execution_id THEN v.n - 1
  ELSE v.n END`

// lostClaims are the columns of claims that did not win.
var lostClaims = columns("tenant text, scope text, key_hmac text, fingerprint text, rule text, owner text, execution_id text, n bigint")

// countClaims counts and answers the claims that are not in results yet, puts them there and gives their events.
func (t *tx) countClaims(ctx context.Context, now time.Time, all []store.Claim, results map[identity]store.ClaimResult) ([]event, error) {
	var claims []store.Claim
	for _, c := range all {
		if _, won := results[identityOf(c)]; !won {
			claims = append(claims, c)
		}
	}
	if len(claims) == 0 {
		return nil, nil
	}
	rows := make([][]any, len(claims))
	for i, c := range claims {
		owner := "" // no row of a live lease has this owner
		if c.OwnerExplicit {
			owner = c.Owner
		}
		rows[i] = []any{c.Tenant, c.Scope, c.KeyHMAC, c.Fingerprint, c.FingerprintRule, owner, c.ExecutionID, int64(c.Extra + 1)}
	}
	rowOf := make(map[identity]holdpoint.Run, len(claims))
	err := t.each(lostClaims, rows, []any{now.UnixMicro()}, func(with string, args []any) error {
		counted, err := t.QueryContext(ctx, with+countRows, args...)
		_, err = collect(counted, err, func(row scanner) (r holdpoint.Run, err error) {
			var hmac string
			r, err = scanRun(row, &hmac)
			rowOf[identity{r.Tenant, r.Scope, hmac}] = r
			return r, err
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	var events []event
	for _, c := range claims {
		row, ok := rowOf[identityOf(c)]
		if !ok {
			return nil, fmt.Errorf("claim: run of key %s is gone: %w", c.KeyHMAC, sql.ErrNoRows)
		}
		r := answer(c, row, now)
		results[identityOf(c)] = r
		switch {
		case r.RuleDiffers:
		case r.Outcome == holdpoint.Mismatch:
			events = append(events, mismatchEvents(c, r.Run)...)
		case r.Repeated:
			events = append(events, duplicateEvents(c, r.Run, c.Extra, holdpoint.Busy)...)
		default:
			events = append(events, duplicateEvents(c, r.Run, c.Extra+1, r.Outcome)...)
		}
	}
	return events, nil
}

// answer says what a claim is told that did not win, from the row as it stands at now.
func answer(c store.Claim, r holdpoint.Run, now time.Time) store.ClaimResult {
	a := store.ClaimResult{Outcome: holdpoint.Duplicate, Run: r, Now: now}
	switch {
	case r.FingerprintRule != c.FingerprintRule:
		a.RuleDiffers = true
	case r.Fingerprint != c.Fingerprint:
		a.Outcome = holdpoint.Mismatch
	case r.State == holdpoint.RunProcessing && now.Before(*r.LeaseExpiresAt):
		if c.OwnerExplicit && r.LeaseOwner == c.Owner && r.ExecutionID == c.ExecutionID {
			a.Outcome, a.Repeated, a.Lease = holdpoint.Claimed, true, lease(r)
			break
		}
		a.Outcome, a.RetryAfter = holdpoint.Busy, r.LeaseExpiresAt.Sub(now)
	case r.State == holdpoint.RunFailedRetryable && now.Before(*r.RetryAt):
		a.Outcome, a.RetryAfter = holdpoint.Busy, r.RetryAt.Sub(now)
	case r.State == holdpoint.RunProcessing, r.State == holdpoint.RunFailedRetryable:
		a.Outcome, a.RetryAfter = holdpoint.Busy, sweptSoon
	}
	return a
}

// duplicateEvents are the events of the last n duplicates of a run, as far as they are among its first.
func duplicateEvents(c store.Claim, r holdpoint.Run, n int, outcome holdpoint.ClaimOutcome) []event {
	var events []event
	for i := r.Duplicates - n + 1; i <= min(r.Duplicates, notedEach); i++ {
		events = append(events, event{tenant: r.Tenant, run: r.ID, kind: "run.duplicate", who: c.Who, data: map[string]any{"number": i,
			"outcome": outcome, "state": r.State, "version": r.Version, "execution_id": c.ExecutionID, "delivery_id": c.DeliveryID}})
	}
	return events
}

// mismatchEvents are the events of the latest mismatches of a run, as far as they are among its first.
func mismatchEvents(c store.Claim, r holdpoint.Run) []event {
	var events []event
	for i := r.Mismatches - c.Extra; i <= min(r.Mismatches, notedEach); i++ {
		events = append(events, event{tenant: r.Tenant, run: r.ID, kind: "run.mismatch", who: c.Who, data: map[string]any{"number": i,
			"fingerprint": r.Fingerprint, "brought": c.Fingerprint, "fingerprint_rule": r.FingerprintRule, "state": r.State,
			"execution_id": c.ExecutionID, "delivery_id": c.DeliveryID}})
	}
	return events
}

// RenewLease implements store.Runs.
func (s *Store) RenewLease(ctx context.Context, f store.Fence, extend time.Duration) (holdpoint.Lease, error) {
	var held holdpoint.Lease
	err := s.do(ctx, "RenewLease", func(t *tx) error {
		r, now, err := t.lockRun(ctx, f.Tenant, f.RunID)
		if err != nil {
			return err
		}
		if err := owned(f, r, now); err != nil {
			return err
		}
		held = *lease(r)
		if until := now.Add(extend); until.After(held.ExpiresAt) {
			held.ExpiresAt = until
		}
		if held.ExpiresAt.After(held.CapAt) {
			held.ExpiresAt = held.CapAt
		}
		// Race: a claim that takes the run over at the same instant has the version; then this moves no row.
		res, err := t.ExecContext(ctx, `UPDATE runs SET lease_expires_at = $3, updated_at = $4
			WHERE tenant = $1 AND id = $2 AND state = 'processing' AND lease_owner = $5 AND version = $6 AND lease_expires_at > $4`,
			f.Tenant, f.RunID, held.ExpiresAt.UnixMicro(), now.UnixMicro(), f.Owner, f.Version)
		if err := oneRow(res, err, lostLease(r)); err != nil {
			return err
		}
		return t.record(ctx, now, event{tenant: f.Tenant, run: f.RunID, kind: "lease.renewed",
			who:  holdpoint.Who{Kind: "machine", ID: f.Owner, How: "lease"},
			data: map[string]any{"version": f.Version, "expires_at": held.ExpiresAt, "cap_at": held.CapAt}})
	})
	return held, err
}
