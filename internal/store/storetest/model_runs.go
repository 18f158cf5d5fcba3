package storetest

import (
	"context"
	"slices"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// modelTells is how many duplicates and mismatches of a run become events one by one (R1.3).
const modelTells = 20

// find gives the run of an identity, or nil.
func (m *model) find(tenant, scope, hmac string) *modelRun {
	for _, r := range m.runs {
		if r.Run.Tenant == tenant && r.Run.Scope == scope && r.hmac == hmac {
			return r
		}
	}
	return nil
}

// add makes a run: claimed, or due for any claim.
func (m *model) add(c store.Claim, claimed bool) *modelRun {
	now := m.clock()
	r := &modelRun{hmac: c.KeyHMAC, heldAt: map[string]time.Time{}, doubtedAt: map[string]time.Time{}, proved: map[string]time.Time{}}
	r.RunKey, r.Payload, r.Initiator, r.ResumeURL = c.RunKey, c.Payload, c.Initiator, c.ResumeURL
	r.Run = holdpoint.Run{ID: c.RunID, Tenant: c.Tenant, Workflow: c.Workflow, Scope: c.Scope, Key: c.Key, KeyFlag: c.KeyFlag, Operation: c.Operation,
		State: holdpoint.RunFailedRetryable, Version: 1, Fingerprint: c.Fingerprint, FingerprintRule: c.FingerprintRule, Ignore: c.Ignore,
		PolicyHash: c.PolicyHash, TriggerSource: c.TriggerSource, WorkflowVersion: c.WorkflowVersion, DeliveryID: c.DeliveryID,
		AttemptLimit: c.AttemptLimit, Round: 1, StealCap: c.StealCap, RetryAt: new(now), BudgetUntil: new(now.Add(c.Budget)), CreatedAt: now}
	if claimed {
		run := &r.Run
		run.State, run.RetryAt, run.Attempts, run.LeaseOwner, run.ExecutionID = holdpoint.RunProcessing, nil, 1, c.Owner, c.ExecutionID
		run.ClaimedAt, run.LeaseExpiresAt, run.LeaseCapAt = new(now), new(now.Add(min(c.Lease, c.Cap))), new(now.Add(c.Cap))
	}
	m.runs[modelRef{c.Tenant, c.RunID}] = r
	return r
}

func (m *model) ClaimRuns(_ context.Context, claims []store.Claim) ([]store.ClaimResult, error) {
	results := make([]store.ClaimResult, len(claims))
	for i, c := range claims {
		results[i] = m.claim(c)
		results[i].Now = m.clock()
	}
	return results, nil
}

func (m *model) claim(c store.Claim) store.ClaimResult {
	now, r := m.clock(), m.find(c.Tenant, c.Scope, c.KeyHMAC)
	if r == nil {
		r = m.add(c, true)
		m.tell(r, "run.claimed")
		m.duplicates(r, c.Extra)
		return store.ClaimResult{Outcome: holdpoint.Claimed, Run: r.Run, Lease: r.lease()}
	}
	run := &r.Run
	switch {
	case run.FingerprintRule != c.FingerprintRule:
		return store.ClaimResult{Outcome: holdpoint.Duplicate, Run: *run, RuleDiffers: true}
	case run.Fingerprint != c.Fingerprint:
		for range c.Extra + 1 {
			if run.Mismatches++; run.Mismatches <= modelTells {
				m.tell(r, "run.mismatch")
			}
		}
		return store.ClaimResult{Outcome: holdpoint.Mismatch, Run: *run}
	}
	expired := run.State == holdpoint.RunProcessing && m.past(*run.LeaseExpiresAt)
	due := run.State == holdpoint.RunFailedRetryable && m.past(*run.RetryAt)
	inTime := run.BudgetUntil.After(now)
	if inTime && (expired && run.Steals < run.StealCap || due && run.Attempts < run.AttemptLimit) {
		return m.recover(r, c, expired)
	}
	a := store.ClaimResult{Outcome: holdpoint.Duplicate}
	again := false
	switch {
	case run.State == holdpoint.RunProcessing && !expired:
		a.Outcome, a.RetryAfter = holdpoint.Busy, run.LeaseExpiresAt.Sub(now)
		again = c.OwnerExplicit && c.Owner == run.LeaseOwner && c.ExecutionID == run.ExecutionID
	case run.State == holdpoint.RunFailedRetryable && !due:
		a.Outcome, a.RetryAfter = holdpoint.Busy, run.RetryAt.Sub(now)
	case expired || due: // no claim may take it; the sweeper ends it
		a.Outcome, a.RetryAfter = holdpoint.Busy, time.Second
	}
	if again { // a lost answer is no duplicate
		m.duplicates(r, c.Extra)
		return store.ClaimResult{Outcome: holdpoint.Claimed, Run: *run, Lease: r.lease(), Repeated: true}
	}
	m.duplicates(r, c.Extra+1)
	a.Run = *run
	return a
}

// recover takes over a run whose lease has expired or whose retry is due.
func (m *model) recover(r *modelRun, c store.Claim, expired bool) store.ClaimResult {
	now, run := m.clock(), &r.Run
	a := store.ClaimResult{Outcome: holdpoint.Claimed, RecoveredFrom: "failed_retryable"}
	switch {
	case expired:
		a.RecoveredFrom, run.Reason = "expired_lease", holdpoint.ReasonExpiredLease
		run.Steals++
	case run.Reason != holdpoint.ReasonSentBack:
		run.Reason = holdpoint.ReasonRetryDue
	}
	run.State, run.FailureClass, run.Version, run.Attempts, run.RetryAt, run.LastCall = holdpoint.RunProcessing, "", run.Version+1, run.Attempts+1, nil, ""
	run.LeaseOwner, run.ExecutionID, run.PolicyHash, run.AttemptLimit, run.StealCap = c.Owner, c.ExecutionID, c.PolicyHash, c.AttemptLimit, c.StealCap
	run.TriggerSource, run.WorkflowVersion, run.DeliveryID = c.TriggerSource, c.WorkflowVersion, c.DeliveryID
	run.ClaimedAt, run.LeaseExpiresAt, run.LeaseCapAt = new(now), new(now.Add(min(c.Lease, c.Cap))), new(now.Add(c.Cap))
	r.claimable = false
	m.tell(r, "run.claimed")
	if expired {
		m.tell(r, "run.stolen")
	}
	m.duplicates(r, c.Extra)
	a.Run, a.Lease = r.Run, r.lease()
	return a
}

func (r *modelRun) lease() *holdpoint.Lease {
	return &holdpoint.Lease{Owner: r.Run.LeaseOwner, Version: r.Run.Version, ExpiresAt: *r.Run.LeaseExpiresAt, CapAt: *r.Run.LeaseCapAt}
}

// duplicates counts deliveries that did not win; the first ones are told one by one, the last one once it is quiet.
func (m *model) duplicates(r *modelRun, n int) {
	for range n {
		r.duplicate = m.clock()
		if r.Run.Duplicates++; r.Run.Duplicates <= modelTells {
			r.told++
			m.tell(r, "run.duplicate")
		}
	}
}

// owned finds the run of a fence that holds its live lease.
func (m *model) owned(f store.Fence) (*modelRun, error) {
	r, err := m.run(f.Tenant, f.RunID)
	if err != nil {
		return nil, err
	}
	run := r.Run
	if run.State != holdpoint.RunProcessing || run.LeaseOwner != f.Owner || run.Version != f.Version || m.past(*run.LeaseExpiresAt) {
		return nil, refused(holdpoint.CodeLeaseLost)
	}
	if run.ExecutionID != "" && run.ExecutionID != f.ExecutionID {
		return nil, refused(holdpoint.CodeLeaseOtherExecution)
	}
	return r, nil
}

func (m *model) RenewLease(_ context.Context, f store.Fence, extend time.Duration) (holdpoint.Lease, error) {
	r, err := m.owned(f)
	if err != nil {
		return holdpoint.Lease{}, err
	}
	until := m.clock().Add(extend)
	if until.Before(*r.Run.LeaseExpiresAt) {
		until = *r.Run.LeaseExpiresAt
	}
	if until.After(*r.Run.LeaseCapAt) {
		until = *r.Run.LeaseCapAt
	}
	r.Run.LeaseExpiresAt = new(until)
	m.tell(r, "lease.renewed")
	return *r.lease(), nil
}

func (m *model) ReplaceRun(_ context.Context, p store.Replacement) (before, after holdpoint.Run, created bool, err error) {
	old, err := m.run(p.Tenant, p.OldRunID)
	if err != nil {
		return before, after, false, err
	}
	next := m.find(p.New.Tenant, p.New.Scope, p.New.KeyHMAC)
	if created = next == nil; created {
		next = m.add(p.New, false)
	}
	err = m.verb(func() error { return m.replace(old, next, p.New) }, old, next)
	if err != nil && created {
		delete(m.runs, modelRef{p.New.Tenant, p.New.RunID})
	}
	return old.Run, next.Run, created, err
}

func (m *model) replace(old, next *modelRun, c store.Claim) error {
	if old.Run.ReplacedBy == next.Run.ID { // linked already
		return nil
	}
	switch {
	case old == next, old.Run.ReplacedBy != "", next.Run.Replaces != "", next.Run.ReplacedBy != "":
		return refused(holdpoint.CodeNotAllowedNow)
	case next.Run.FingerprintRule != c.FingerprintRule, next.Run.Fingerprint != c.Fingerprint:
		return refused(holdpoint.CodeMismatch)
	case old.Run.State == holdpoint.RunProcessing && !m.past(*old.Run.LeaseExpiresAt), old.Run.State == holdpoint.RunApproved:
		return refused(holdpoint.CodeNotAllowedNow)
	}
	if !old.Run.State.Terminal() {
		if err := m.closeApprovals(old, holdpoint.ApprovalInvalidated, "invalidate"); err != nil {
			return err
		}
		if err := m.turn(old, holdpoint.RunFailedTerminal, "replace", holdpoint.ReasonReplaced, ""); err != nil {
			return err
		}
	}
	old.Run.ReplacedBy, next.Run.Replaces = next.Run.ID, old.Run.ID
	m.tell(old, "run.replaced")
	m.tell(next, "run.linked")
	return nil
}

func (m *model) CancelRun(_ context.Context, tenant, id string, _ []byte, _ holdpoint.Who) (holdpoint.Run, error) {
	r, err := m.run(tenant, id)
	if err != nil {
		return holdpoint.Run{}, err
	}
	err = m.verb(func() error {
		switch r.Run.State {
		case holdpoint.RunApproved:
			if m.endNotBegun(r, "", "cancelled") == 0 {
				return refused(holdpoint.CodeNotAllowedNow)
			}
			m.settle(r)
		case holdpoint.RunAwaitingHuman:
			if err := m.closeApprovals(r, holdpoint.ApprovalWithdrawn, "withdraw"); err != nil {
				return err
			}
			if err := m.turn(r, holdpoint.RunFailedTerminal, "withdraw", holdpoint.ReasonCancelled, ""); err != nil {
				return err
			}
		default:
			if err := m.turn(r, holdpoint.RunFailedTerminal, "cancel", holdpoint.ReasonCancelled, ""); err != nil {
				return err
			}
		}
		m.tell(r, "run.cancelled")
		return nil
	}, r)
	return r.Run, err
}

func (m *model) SweepRuns(_ context.Context, limit int) (swept []store.Swept, err error) {
	kinds := map[string]int{}
	room := func(kind string) bool { kinds[kind]++; return kinds[kind] <= limit }
	end := func(r *modelRun, trigger string, reason holdpoint.Reason, class holdpoint.FailureClass) {
		if err = m.turn(r, holdpoint.RunFailedTerminal, trigger, reason, class); err == nil {
			m.tell(r, "run.failed")
			swept = append(swept, store.Swept{What: "run.failed", Run: r.Run})
		}
	}
	for _, r := range m.sorted("") {
		run := &r.Run
		over := run.BudgetUntil != nil && m.past(*run.BudgetUntil)
		due := false
		switch run.State {
		case holdpoint.RunAwaitingHuman:
			n := slices.IndexFunc(r.Approvals, func(a holdpoint.Approval) bool { return a.State == holdpoint.ApprovalPending && m.past(a.ApproveBy) })
			if n < 0 || !room("expired") {
				break
			}
			if err = m.closeApprovals(r, holdpoint.ApprovalExpired, "expire"); err != nil {
				return nil, err
			}
			end(r, "expire", holdpoint.ReasonExpired, "")
			swept[len(swept)-1].What, swept[len(swept)-1].Approval = "approval.expired", r.Approvals[n]
		case holdpoint.RunProcessing:
			switch expired := m.past(*run.LeaseExpiresAt); {
			case expired && run.Steals >= run.StealCap && room("stolen"):
				end(r, "steal_cap", holdpoint.ReasonSteals, holdpoint.ClassCrash)
			case expired && over && room("stolen"):
				end(r, "steal_cap", holdpoint.ReasonBudget, holdpoint.ClassCrash)
			default:
				due = expired
			}
		case holdpoint.RunFailedRetryable:
			if spent := over || run.Attempts >= run.AttemptLimit; spent && room("spent") {
				end(r, "budget_over", holdpoint.ReasonBudget, run.FailureClass)
			} else {
				due = m.past(*run.RetryAt)
			}
		}
		if due && !r.claimable && room("due") {
			r.claimable = true
			m.tell(r, "run.claimable")
			swept = append(swept, store.Swept{What: "run.claimable", Run: r.Run})
		}
		if run.Duplicates > r.told && m.past(r.duplicate.Add(time.Minute)) && room("quiet") {
			r.told = run.Duplicates
			m.tell(r, "run.duplicate")
		}
	}
	return swept, err
}

func (m *model) WorkDurations(_ context.Context, tenant, workflow string, limit int) (all []time.Duration, err error) {
	for _, r := range slices.Backward(m.sorted(tenant)) {
		if r.Run.Workflow == workflow && r.worked != nil && len(all) < limit {
			all = append(all, *r.worked)
		}
	}
	return all, nil
}
