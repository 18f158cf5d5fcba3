package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/holdpoint/holdpoint"
)

// answers derives the four questions from what stands (R5.2).
func answers(v RunView) Answers {
	a := Answers{Processed: "no", Sent: "no", Uncertain: []string{}}
	switch v.State {
	case holdpoint.RunCompleted:
		a.Processed = "yes"
	case holdpoint.RunProcessing, holdpoint.RunApproved:
		a.Processed = "in_progress"
	case holdpoint.RunAwaitingHuman, holdpoint.RunFailedRetryable:
		a.Processed = "waiting"
	}
	var released, completed, unknown, open int
	for _, x := range v.Effects {
		if x.Planned {
			continue
		}
		released++
		switch {
		case x.State == holdpoint.EffectCompleted:
			completed++
		case x.State == holdpoint.EffectUnknown:
			unknown++
			a.Uncertain = append(a.Uncertain, x.Slot)
		case x.State.Open():
			open++
		}
	}
	switch {
	case unknown > 0:
		a.Sent = "unknown"
	case released > 0 && completed == released:
		a.Sent = "yes"
	case completed > 0:
		a.Sent = "partly"
	case open > 0:
		a.Sent = "not_yet"
	}
	for _, s := range v.Steps {
		if s.State == holdpoint.StepUncertain {
			a.Uncertain = append(a.Uncertain, "step "+s.Name)
		}
	}
	for _, d := range v.Decisions {
		if d.Decision == holdpoint.DecisionApprove {
			a.ApprovedBy = d.Email
		}
	}
	if n := len(v.Drafts); n > 0 {
		m := v.Drafts[n-1].Model
		a.Model = strings.TrimSpace(strings.Join([]string{m.EndpointClass, m.Name, m.Revision}, " "))
	}
	return a
}

// safeActions says what may safely be done now, by the same transition tables that decide when somebody tries.
func safeActions(v RunView) []SafeAction {
	out := []SafeAction{claimAction(v)}
	terminal := v.State.Terminal()
	replace := SafeAction{"replace", "", v.ReplacedBy == "", "A correction is a new run with its own upstream-issued key, linked to this one, through a fresh gate."}
	openEffects := slices.ContainsFunc(v.Effects, func(x EffectView) bool { return !x.Planned && x.State.Open() })
	switch {
	case v.ReplacedBy != "":
		replace.Why = "Already replaced; correct the newest run of the chain."
	case openEffects:
		replace.Allowed, replace.Why = false, "Some effects are still open; resolve or cancel them first."
	case v.State == holdpoint.RunProcessing:
		replace.Allowed, replace.Why = false, "An execution still works on it."
	}
	out = append(out, replace)
	cancel := SafeAction{"cancel", "", !terminal && v.State != holdpoint.RunProcessing, "Ends the run; nothing that has not begun is sent."}
	if !cancel.Allowed {
		cancel.Why = "The run has ended."
		if v.State == holdpoint.RunProcessing {
			cancel.Why = "An execution holds the lease; wait until it hands over or the lease expires."
		}
	}
	out = append(out, cancel)
	for _, x := range v.Effects {
		switch {
		case x.Planned:
		case x.State == holdpoint.EffectUnknown:
			out = append(out, SafeAction{"resend", x.Slot, false, "The provider may have accepted it. Sending again could do it twice."},
				SafeAction{"reconcile", x.Slot, true, "Looks the write up at the provider by its reference; sends nothing."},
				SafeAction{"resolve", x.Slot, true, "Record what is true: sent, not sent, or abandon. Look at the provider first."})
		case x.State == holdpoint.EffectPending:
			out = append(out, SafeAction{"cancel_effect", x.Slot, true, "It has not begun; cancelling it sends nothing."})
		}
	}
	for _, s := range v.Steps {
		if s.State == holdpoint.StepUncertain {
			out = append(out, SafeAction{"resolve_step", s.Name, true, "Nobody knows whether this step's side effect happened. Find out, then record done or not done."})
		}
	}
	return out
}

// claimAction says whether an execution may work on the run under the same key.
func claimAction(v RunView) SafeAction {
	a := SafeAction{Action: "claim"}
	due := v.RetryAt != nil && !v.Now.Before(*v.RetryAt)
	inside := v.BudgetUntil != nil && v.Now.Before(*v.BudgetUntil)
	switch {
	case v.State == holdpoint.RunFailedRetryable && due && inside && v.Attempts < v.AttemptLimit:
		a.Allowed, a.Why = true, "It is due for another attempt under the same key."
	case v.State == holdpoint.RunFailedRetryable && inside && v.Attempts < v.AttemptLimit:
		a.Why = fmt.Sprintf("Not before %s.", v.RetryAt.Format("2006-01-02 15:04:05 UTC"))
	case v.State == holdpoint.RunFailedRetryable:
		a.Why = "Its retry budget is over."
	case v.State == holdpoint.RunProcessing && v.LeaseExpiresAt != nil && !v.Now.Before(*v.LeaseExpiresAt):
		a.Allowed, a.Why = true, "Its worker's lease has expired; a claim takes over from the first step that is not complete."
	case v.State == holdpoint.RunProcessing:
		a.Why = "An execution works on it."
	case v.State == holdpoint.RunAwaitingHuman:
		a.Why = "It waits for a person."
	case v.State == holdpoint.RunApproved:
		a.Why = "It is approved and being sent."
	default:
		a.Why = "It has ended. A delivery of the same key gets its result."
	}
	return a
}

// textAt reads a text, number or boolean of a JSON document by pointer (RFC 6901).
func textAt(doc []byte, pointer string) (string, bool) {
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber()
	var v any
	if dec.Decode(&v) != nil {
		return "", false
	}
	for part := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		part = strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
		switch x := v.(type) {
		case map[string]any:
			v = x[part]
		case []any:
			i, err := strconv.Atoi(part)
			if err != nil || i < 0 || i >= len(x) {
				return "", false
			}
			v = x[i]
		default:
			return "", false
		}
	}
	switch x := v.(type) {
	case string:
		return x, strings.TrimSpace(x) != ""
	case json.Number:
		return x.String(), true
	}
	return "", false
}

// sortedKeys lists a map's keys in order.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
