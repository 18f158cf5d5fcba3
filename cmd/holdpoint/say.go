package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/client"
)

// withReason writes a state with its reason.
func withReason(state, reason string) string {
	if reason == "" {
		return state
	}
	return state + " (" + reason + ")"
}

// sayMore tells how to see the next page.
func sayMore(w io.Writer, next string) {
	if next != "" {
		fmt.Fprintf(w, "\nThere is more: --cursor %s\n", next)
	}
}

// sayRun answers the questions that people ask about a run (R5.2), then shows what stands.
func sayRun(w io.Writer, v client.Run) {
	fmt.Fprintf(w, "Run %s of workflow %s\n\n", v.ID, v.Workflow)
	pairs(w, "key", v.Key, "looks weak", v.KeyFlag, "state", withReason(string(v.State), string(v.Reason)), "failure", string(v.FailureClass),
		"claimed by execution", v.ExecutionID, "duplicates", positive(v.Duplicates), "mismatches", positive(v.Mismatches), "steals", positive(v.Steals),
		"next attempt", atOf(v.RetryAt), "replaces", v.Replaces, "replaced by", v.ReplacedBy, "policy", short(v.PolicyHash), "created", at(v.CreatedAt))
	fmt.Fprintln(w)
	pairs(w, "Did we process it?", processed(v), "Did we send?", sent(v), "Who approved?", approved(v),
		"Which model drafted?", orElse(v.Answers.Model, drafted(v)), "What is uncertain?", uncertain(v))
	sayEffects(w, v.Effects)
	saySteps(w, v.Steps)
	for _, a := range v.Approvals {
		if a.State == holdpoint.ApprovalPending {
			fmt.Fprintf(w, "\nIt waits for %s until %s: %s\n", strings.Join(a.Roles, " or "), at(a.ApproveBy), a.PageURL)
		}
	}
	if v.FailureText != "" {
		fmt.Fprintln(w, "\nWhat the workflow said about its failure:")
		indented(w, []byte(v.FailureText))
	}
	fmt.Fprintln(w, "\nWhat may be done now:")
	rows := make([][]string, len(v.SafeActions))
	for i, a := range v.SafeActions {
		safe := "no"
		if a.Allowed {
			safe = "safe"
		}
		rows[i] = []string{"  " + a.Action, a.Subject, safe, a.Why}
	}
	table(w, "  ACTION | WHAT | NOW | WHY", rows)
}

func positive(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

func orElse(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

func processed(v client.Run) string {
	switch v.Answers.Processed {
	case "yes":
		return "Yes, completely."
	case "in_progress":
		if v.State == holdpoint.RunApproved {
			return "Not yet; what was approved is not settled."
		}
		return "It is being worked on."
	case "waiting":
		if v.State == holdpoint.RunAwaitingHuman {
			return "Not yet; it waits for a person."
		}
		return "Not yet; it waits for another attempt."
	}
	return "No; it ended as " + withReason(string(v.State), string(v.Reason)) + "."
}

func sent(v client.Run) string {
	switch v.Answers.Sent {
	case "yes":
		return "Yes, everything."
	case "partly":
		return "Partly; see the effects."
	case "not_yet":
		return "Not yet; it is approved and waits to be sent."
	case "unknown":
		return "Nobody knows for some of it; look at the provider before anything else."
	}
	return "No."
}

func approved(v client.Run) string {
	switch {
	case v.Answers.ApprovedBy != "":
		return v.Answers.ApprovedBy
	case v.State == holdpoint.RunAwaitingHuman:
		return "Nobody yet."
	}
	return "Nobody."
}

func drafted(v client.Run) string {
	if len(v.Drafts) == 0 {
		return "None; there is no accepted draft."
	}
	return "The workflow named none."
}

func uncertain(v client.Run) string {
	if len(v.Answers.Uncertain) == 0 {
		return "Nothing."
	}
	return strings.Join(v.Answers.Uncertain, ", ")
}

// sayEffects lists effects; planned ones cannot be sent until somebody approves.
func sayEffects(w io.Writer, effects []client.Effect) {
	if len(effects) == 0 {
		return
	}
	fmt.Fprintln(w, "\nEffects:")
	rows := make([][]string, len(effects))
	for i, x := range effects {
		state := effectState(x.Effect)
		if x.Planned {
			state = "planned"
		}
		id := x.ID
		if x.Planned {
			id = ""
		}
		rows[i] = []string{"  " + x.Slot, x.Type, x.Target, state, strconv.Itoa(x.Attempts), x.ProviderID, id}
	}
	table(w, "  SLOT | TYPE | TARGET | STATE | ATTEMPTS | PROVIDER ID | EFFECT", rows)
}

// effectState writes an effect's state with its hold or the reason why it ended.
func effectState(x holdpoint.Effect) string {
	switch {
	case x.Hold != holdpoint.HoldNone:
		return fmt.Sprintf("%s, held: %s", x.State, x.Hold)
	case x.FailureClass != holdpoint.ClassNone && x.State != holdpoint.EffectCompleted:
		return withReason(string(x.State), string(x.FailureClass))
	}
	return withReason(string(x.State), x.Reason)
}

func saySteps(w io.Writer, steps []client.Step) {
	if len(steps) == 0 {
		return
	}
	fmt.Fprintln(w, "\nSteps:")
	rows := make([][]string, len(steps))
	for i, s := range steps {
		governed := ""
		if s.SideEffect {
			governed = "the workflow's own write, not governed"
		}
		rows[i] = []string{"  " + s.Name, withReason(string(s.State), string(s.FailureClass)), at(s.UpdatedAt), governed}
	}
	table(w, "  STEP | STATE | CHANGED | NOTE", rows)
}

// sayCard shows what an approver must see, in the order of the page (R3.7).
func sayCard(w io.Writer, c client.Card) {
	a := c.Approval
	fmt.Fprintln(w, orElse(c.Sentence, "You may not see what this would send."))
	fmt.Fprintln(w)
	by, otherwise := "", ""
	if a.State == holdpoint.ApprovalPending {
		by, otherwise = at(a.ApproveBy), "the run ends and nothing is sent"
	}
	pairs(w, "approval", a.ID, "state", string(a.State), "digest", a.Digest, "decide by", by, "send by", atOf(a.ExecuteBy),
		"if nobody decides", otherwise, "approvals", fmt.Sprintf("%d given, %d missing", c.Given, c.Missing))
	for i, x := range c.Effects {
		first := ""
		if c.FirstTime[x.Slot] {
			first = "yes"
		}
		back := ""
		if x.Reversible != nil {
			back = "within " + brief(time.Duration(x.Reversible.Within)) + ": " + x.Reversible.By
		}
		fmt.Fprintf(w, "\nEffect %d of %d\n", i+1, len(c.Effects))
		pairs(w, "slot", x.Slot, "type", x.Type, "consequence", x.Consequence, "connector", x.Connector, "provider", x.Provider, "target", x.Target,
			"first for this target", first, "reversible", back, "payload hash", x.PayloadHash)
		if len(x.Payload) > 0 {
			fmt.Fprintln(w, "  payload")
			indented(w, x.Payload)
		}
	}
	fmt.Fprintln(w)
	m := c.Draft.Model
	pairs(w, "why it stopped", whyHeld(a.Why), "policy", short(a.PolicyHash), "model", strings.TrimSpace(strings.Join([]string{m.EndpointClass, m.Name, m.Revision}, " ")),
		"workflow", a.Workflow, "run", a.RunID, "key", c.Run.Key, "source", c.Draft.SourceURL, "earlier runs of the record", positive(len(c.Earlier)),
		"may decide", strings.Join(c.Eligible, ", "), "you act as", c.ActAs)
	if c.Standing != nil {
		fmt.Fprintf(w, "\n%s decided on %s: %s.\n", c.Standing.Email, at(c.Standing.CreatedAt), c.Standing.Decision)
	}
	if c.MayDecide {
		fmt.Fprintln(w, "\nYou may decide:")
		for _, d := range a.Allowed {
			sayDecision(w, a, d)
		}
	} else if c.WhyNot != "" {
		fmt.Fprintf(w, "\nYou cannot decide: %s\n", c.WhyNot)
	}
}

// sayDecision writes the command that decides d; one that has none is left out.
func sayDecision(w io.Writer, a client.Approval, d holdpoint.Decision) {
	command := map[holdpoint.Decision]string{holdpoint.DecisionApprove: "approve", holdpoint.DecisionReject: "reject", holdpoint.DecisionSendBack: "send-back"}[d]
	if command == "" {
		return
	}
	reason := ""
	if d != holdpoint.DecisionApprove {
		reason = " --reason \"…\""
	}
	fmt.Fprintf(w, "  holdpoint approvals %s %s --digest %s%s\n", command, a.ID, a.Digest, reason)
}

// whyHeld says in words why a draft stopped at its gate.
func whyHeld(why string) string {
	switch why {
	case "gate":
		return "the policy asks a person before it acts"
	case "refusal":
		return "the model refused to answer"
	case "soft_failure":
		return "no effect could be made from this draft; the server's log says which expression of the policy failed"
	case "no_effect":
		return "by the policy nothing follows from this draft"
	}
	return why
}
