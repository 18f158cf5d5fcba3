package storetest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// modelMachines are the machines: one for each area, with what leads there. Beside verbs they draw what makes more to work
// on: Held is a draft that waits for people, Released one whose effects may be sent, Doubtful one with an effect in doubt.
var modelMachines = []modelMachine{
	{name: "runs", begin: func(*twin) {}, verbs: words(`ClaimRuns ClaimRuns ClaimRuns ClaimRuns RenewLease BeginStep FinishStep RejectDraft RejectDraft HoldDraft EndWork EndWork
 ReplaceRun CancelRun SweepRuns SweepRuns WorkDurations Decide Now Now Tick FindRuns AddEvents Held`)},
	{name: "steps", begin: actRetake, verbs: words(`BeginStep BeginStep BeginStep FinishStep FinishStep ResolveStep Retake RenewLease`)},
	{name: "gates", begin: actHeld, verbs: words(`Held Held HoldDraft Decide Decide Decide WithdrawApproval MintChallengeToken ChallengeByToken OpenChallenge OpenChallenge ApprovalByID
 FindApprovals SweepRuns ReplaceRun CancelRun Tick Tick Now LeaseEffects`)},
	{name: "outbox", begin: beginReleased, verbs: words(`Released LeaseEffects LeaseEffects LeaseEffects BeginAttempts BeginAttempts BeginAttempts BeginAttempts SettleAttempts SettleAttempts
 SettleAttempts SettleAttempts ReleaseEffects RecoverEffects SetSwitch SetSwitch Tick HoldEffects HoldConnector ReleaseConnector PutProof`)},
	{name: "doubt", begin: beginReleased, verbs: words(`Doubtful Doubtful LeaseEffects BeginAttempts BeginAttempts SettleAttempts SettleAttempts SettleAttempts RecoverEffects LeaseLookups
 LeaseLookups SettleLookup SettleLookup SettleLookup ResolveEffect ResolveEffect CancelEffect ScheduleLookup WithdrawApproval CancelRun CloseExpired Tick EffectByID FindEffects FirstForTarget`)},
	{name: "operate", begin: beginReleased, verbs: words(`SetSwitch SetSwitch HoldConnector HoldConnector ReleaseConnector PutProof Proof AddMessages AddMessages LeaseMessages LeaseMessages
 SettleMessage SettleMessage CreateTenant TenantByName PutPolicy PutPolicy PolicyByHash ActivatePolicy ActivatePolicy HoldEffects LeaseEffects FindEffects AddEvents Tick`)},
	{name: "people", begin: beginPeople, verbs: words(`CreatePerson CreatePerson PersonByEmail PersonByID SetPassword SetDisabled SetDisabled SetLanguage GrantRole GrantRole RevokeRole CreateKey
 CreateKey KeyByHash KeyByHash RevokeKey CreateSession CreateSession SessionByHash SessionByHash SessionByHash EndSession Tick`)},
}

var words = strings.Fields

// modelActions calls each verb with drawn arguments. What only reads a whole list is called by same.
var modelActions = map[string]func(*twin){
	"ClaimRuns": actClaimRuns, "RenewLease": actRenewLease, "BeginStep": actBeginStep, "FinishStep": actFinishStep, "ResolveStep": actResolveStep,
	"RejectDraft": actRejectDraft, "HoldDraft": actHoldDraft, "EndWork": actEndWork, "ReplaceRun": actReplaceRun, "CancelRun": actCancelRun,
	"SweepRuns": actSweepRuns, "WorkDurations": actWorkDurations, "Now": actNow, "Tick": actTick, "Retake": actRetake, "Held": actHeld, "Released": actReleased, "Doubtful": actDoubtful,
	"FindRuns": actFindRuns, "AddEvents": actAddEvents,

	"Decide": actDecide, "WithdrawApproval": actWithdrawApproval, "MintChallengeToken": actMintChallengeToken, "ChallengeByToken": actChallengeByToken,
	"OpenChallenge": actOpenChallenge, "ApprovalByID": actApprovalByID, "FindApprovals": actFindApprovals,

	"LeaseEffects": actLeaseEffects, "BeginAttempts": actBeginAttempts, "SettleAttempts": actSettleAttempts, "ReleaseEffects": actReleaseEffects,
	"RecoverEffects": actRecoverEffects, "LeaseLookups": actLeaseLookups, "SettleLookup": actSettleLookup, "ResolveEffect": actResolveEffect,
	"CancelEffect": actCancelEffect, "ScheduleLookup": actScheduleLookup, "HoldEffects": actHoldEffects, "CloseExpired": actCloseExpired,
	"EffectByID": actEffectByID, "FindEffects": actFindEffects, "FirstForTarget": actFirstForTarget, "InFlight": actInFlight,

	"SetSwitch": actSetSwitch, "HoldConnector": actHoldConnector, "ReleaseConnector": actReleaseConnector, "PutProof": actPutProof, "Proof": actProof,
	"AddMessages": actAddMessages, "LeaseMessages": actLeaseMessages, "SettleMessage": actSettleMessage, "CreateTenant": actCreateTenant,
	"TenantByName": actTenantByName, "PutPolicy": actPutPolicy, "PolicyByHash": actPolicyByHash, "ActivatePolicy": actActivatePolicy,

	"CreatePerson": actCreatePerson, "PersonByEmail": actPersonByEmail, "PersonByID": actPersonByID, "SetPassword": actSetPassword,
	"SetDisabled": actSetDisabled, "SetLanguage": actSetLanguage, "GrantRole": actGrantRole, "RevokeRole": actRevokeRole, "CreateKey": actCreateKey,
	"KeyByHash": actKeyByHash, "RevokeKey": actRevokeKey, "CreateSession": actCreateSession, "SessionByHash": actSessionByHash, "EndSession": actEndSession,
}

// actRetake claims the first key once its lease is over.
func actRetake(w *twin) {
	w.advance(time.Minute)
	c := newClaim(modelTenants[0], "k1")
	c.RunID, c.Owner, c.Fingerprint, c.FingerprintRule, c.AttemptLimit, c.StealCap, c.Budget = w.id("run"), "w1", "f1", "r1", 99, 99, 24*time.Hour
	w.claim(c)
}

// actHeld claims a new key and hands over a draft.
func actHeld(w *twin) { w.held(func(*store.Draft) {}) }

func (w *twin) held(change func(d *store.Draft)) {
	c := newClaim(modelTenants[0], w.id("key"))
	c.RunID, c.Owner, c.Fingerprint, c.FingerprintRule = w.id("run"), "w1", "f1", "r1"
	w.claim(c)
	d := w.plan(w.fences[len(w.fences)-1], 1, pick(w, "effects", 2, 3, 1, 0))
	change(&d)
	w.hold(d)
}

// actReleased makes one more run whose effects may be sent, released by jane or joe.
func actReleased(w *twin) {
	var a holdpoint.Approval
	w.held(func(d *store.Draft) {
		d.Approval.Quorum, d.Approval.Allowed = 1, everyDecision
		a = d.Approval
		a.Tenant, a.RunID = d.Fence.Tenant, d.Fence.RunID
	})
	w.decide(a, holdpoint.DecisionApprove)
}

// actDoubtful sends whatever is due and loses the answers of some and the sender of the others.
func actDoubtful(w *twin) {
	actReleased(w)
	leased, _ := ask(w, "LeaseEffects", func(s store.Store) ([]store.LeasedEffect, error) {
		return sortedBy(s.LeaseEffects(w.ctx, store.EffectLease{Owner: "d1", For: time.Minute, Limit: 100, Enabled: true}))(func(e store.LeasedEffect) string { return e.ID })
	})
	w.leases = append(w.leases, leased...)
	for _, e := range leased {
		a := store.AttemptBegin{ID: w.id("attempt"), Tenant: e.Tenant, EffectID: e.ID, RunID: e.RunID, Version: e.Version, WireHash: "wire", SendBefore: 10 * time.Second,
			ProofUntil: w.now().Add(time.Hour)}
		begun := w.beginAs("d1", a)
		if len(begun) == 0 || pick(w, "sender lost", true, false) {
			continue
		}
		s := pick(w, "verdict", verdicts[0], verdicts[2])
		s.Tenant, s.RunID, s.EffectID, s.AttemptID, s.Version, s.Who, s.Outcome.Result = e.Tenant, e.RunID, e.ID, a.ID, begun[0].Version, lanes, holdpoint.Unclear
		_, _ = ask(w, "SettleAttempts", func(st store.Store) ([]store.Settled, error) {
			return st.SettleAttempts(w.ctx, "d1", []store.Settlement{s})
		})
	}
}

// beginReleased starts with effects that may be sent.
func beginReleased(w *twin) {
	w.create(holdpoint.Person{ID: jane.ID, Tenant: modelTenants[0], Email: jane.Email, Password: "phc", GrantedRoles: []string{"approver"}})
	for _, scope := range []string{"global", "tenant"} {
		w.flip(store.SwitchChange{Tenant: modelTenants[0], Scope: scope, On: true, Who: admin})
	}
	actReleased(w)
	actReleased(w)
}

// beginPeople starts with one person.
func beginPeople(w *twin) {
	w.create(holdpoint.Person{ID: jane.ID, Tenant: modelTenants[0], Email: jane.Email, Password: "phc"})
}

func actInFlight(w *twin) {
	tenant := pick(w, "tenant", append(modelTenants, "")...)
	_, _ = ask(w, "InFlight", func(s store.Store) ([]holdpoint.Attempt, error) { return s.InFlight(w.ctx, tenant) })
}

// sortedIDs puts ids in order, so that a sequence is drawn alike each time.
func sortedIDs(ids []string) []string {
	slices.Sort(ids)
	return ids
}

// same compares all that stands.
func (w *twin) same() {
	for _, r := range w.model.sorted("") {
		tenant, id := r.Run.Tenant, r.Run.ID
		_, _ = ask(w, "Record", func(s store.Store) (store.Record, error) {
			rec, err := s.Record(w.ctx, tenant, id)
			rec.Steps, _ = sortedBy(rec.Steps, nil)(func(s store.StepRow) string { return s.Name })
			return rec, err
		})
		_, _ = ask(w, "Content", func(s store.Store) (store.Record, error) { return s.Content(w.ctx, tenant, id) })
		w.evidence(tenant, id)
	}
	for _, tenant := range append(modelTenants, "nobody") {
		_, _ = ask(w, "Switches", func(s store.Store) ([]holdpoint.Switch, error) { return s.Switches(w.ctx, tenant) })
		_, _ = ask(w, "ConnectorHolds", func(s store.Store) ([]store.ConnectorHold, error) { return s.ConnectorHolds(w.ctx, tenant) })
		_, _ = ask(w, "ListPeople", func(s store.Store) ([]holdpoint.Person, error) { return s.ListPeople(w.ctx, tenant) })
		_, _ = ask(w, "ListKeys", func(s store.Store) ([]holdpoint.Key, error) { return s.ListKeys(w.ctx, tenant) })
		_, _ = ask(w, "ListPolicies", func(s store.Store) ([]store.PolicyRow, error) { return s.ListPolicies(w.ctx, tenant) })
		w.evidence(tenant, "")
	}
	_, _ = ask(w, "ListTenants", func(s store.Store) ([]store.Tenant, error) { return s.ListTenants(w.ctx) })
	_, _ = ask(w, "Gauges", func(s store.Store) (store.Gauges, error) { return s.Gauges(w.ctx) })
	actInFlight(w)
}

// evidence compares what is told of a run, or of a tenant for "": when and what, without a gap. What is told at one instant
// may come in any order.
func (w *twin) evidence(tenant, run string) {
	_, _ = ask(w, "Events", func(s store.Store) ([]string, error) {
		events, err := s.Events(w.ctx, tenant, run)
		told := make([]string, len(events))
		for i, e := range events {
			require.EqualValues(w.r, i+1, e.Seq, "evidence has a gap")
			told[i] = fmt.Sprintf("%s %s", e.At.Format("2006-01-02 15:04:05.000000"), e.Type)
		}
		return sortedIDs(told), err
	})
}
