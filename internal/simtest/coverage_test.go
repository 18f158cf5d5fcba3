package simtest

import (
	"maps"
	"slices"

	"github.com/holdpoint/holdpoint"
)

// coverage counts what seeds have come across.
type coverage map[string]int

func (c coverage) add(other coverage) {
	for k, n := range other {
		c[k] += n
	}
}

// later are the transitions that no caller of this version can cause, and those that seeds meet too seldom.
var later = map[string]string{
	transitionName("run", holdpoint.RunProcessing, holdpoint.RunApproved, "release"):         "there is no gate but approve_before_act",
	transitionName("run", holdpoint.RunAwaitingHuman, holdpoint.RunAwaitingHuman, "edit"):    "there is no edit, and the quorum is one",
	transitionName("approval", holdpoint.ApprovalPending, holdpoint.ApprovalPending, "edit"): "there is no edit",
	transitionName("effect", holdpoint.EffectPending, holdpoint.EffectUnknown, "doubt"):      "an answer between two attempts; the store's own tests walk it",
}

// missing lists what a full set of seeds must come across and has not: every transition of every table, every mood of the
// providers, every fate of every verb of the path, every hold, verdict and outcome.
func (c coverage) missing() []string {
	want := map[string]bool{}
	table(want, "run", holdpoint.RunTransitions)
	table(want, "step", holdpoint.StepTransitions)
	table(want, "approval", holdpoint.ApprovalTransitions)
	table(want, "effect", holdpoint.EffectTransitions)
	for _, m := range moods {
		want["mood: "+string(m)] = true
	}
	for _, verb := range []string{"ClaimRuns", "HoldDraft", "Decide", "LeaseEffects", "BeginAttempts", "send", "answer", "SettleAttempts", "RecoverEffects", "SweepRuns"} {
		for _, f := range []fate{fails, loses, diesBefore, diesAfter, holds} {
			if verb != "answer" || f == holds || f == diesBefore {
				want["fault: "+verb+" "+string(f)] = true
			}
		}
	}
	for _, h := range []holdpoint.Hold{holdpoint.HoldCredentials, holdpoint.HoldPermission, holdpoint.HoldQuota, holdpoint.HoldConfiguration, holdpoint.HoldAuthority, holdpoint.HoldExpired} {
		want["hold: "+string(h)] = true
	}
	for _, v := range []holdpoint.Verdict{holdpoint.VerdictSent, holdpoint.VerdictNotSent, holdpoint.VerdictAbandon} {
		want["verdict: "+string(v)] = true
	}
	for _, o := range []holdpoint.ClaimOutcome{holdpoint.Claimed, holdpoint.Duplicate, holdpoint.Busy} {
		want["outcome: "+string(o)] = true
	}
	for _, what := range []string{"fault: answer lost", "fault: clock step", "late answer", "write deadline passed", "look-up lags", "repeated under a proof",
		"a lost lease was noticed", "a decision was refused", "a decision on a page", "a decision came too late or was stale", "event: run.mismatch", "event: policy.activated",
		"event: role.revoked", "event: person.disabled", "switch: global", "switch: tenant", "switch: workflow:ticket", "switch: connector:crm", "switch: type:pay.refund",
		"look-up: found", "look-up: absent", "look-up: proved_absent", "look-up: repeatable", "look-up: unclear"} {
		want[what] = true
	}
	for what := range want {
		if c[what] > 0 || later[what] != "" {
			delete(want, what)
		}
	}
	return slices.Sorted(maps.Keys(want))
}

func table[S ~string](want map[string]bool, what string, all []holdpoint.Transition[S]) {
	for _, t := range all {
		want[transitionName(what, t.From, t.To, t.Trigger)] = true
	}
}

// transitions counts the different transitions that were seen.
func (c coverage) transitions() int {
	n := 0
	for what := range c {
		if len(what) > 11 && what[:11] == "transition:" {
			n++
		}
	}
	return n
}
