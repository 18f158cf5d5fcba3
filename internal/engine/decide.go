package engine

import (
	"context"
	"errors"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// DecisionRequest is what a person answers. Digest states what that person saw.
type DecisionRequest struct {
	Decision holdpoint.Decision `json:"decision"`
	Digest   string             `json:"digest"`
	Reason   string             `json:"reason,omitempty"`
}

// DecisionAnswer is what stands after a decision.
type DecisionAnswer struct {
	Approval ApprovalBrief            `json:"approval"`
	Run      holdpoint.Run            `json:"run"`
	Decision holdpoint.DecisionRecord `json:"decision"`
	Effects  []holdpoint.Effect       `json:"effects,omitempty"`
	Repeated bool                     `json:"repeated,omitempty"`
}

// object is what the permission function needs to know about one approval.
func (e *Engine) object(ctx context.Context, rec store.Record, ap holdpoint.Approval, b box) (holdpoint.Object, error) {
	o := holdpoint.Object{Tenant: ap.Tenant, GateRoles: ap.Roles, Assurance: ap.Assurance}
	initiator, err := b.open("initiator", rec.Initiator)
	if err != nil {
		return o, err
	}
	o.Initiator = string(initiator)
	if o.Editors, err = e.authors(ctx, rec.Run); err != nil {
		return o, err
	}
	p, err := e.policies.version(ctx, ap.Tenant, ap.PolicyHash)
	if err != nil {
		return o, err
	}
	w, err := p.workflow(ap.Workflow)
	if err != nil {
		return o, err
	}
	if w.Subject != "" {
		event, err := b.open("payload", rec.Payload)
		if err != nil {
			return o, err
		}
		o.Subject, _ = textAt(event, w.Subject)
	}
	return o, nil
}

// authors names who brought the payload of a correction. What they wrote is theirs, whoever the payload says began it.
func (e *Engine) authors(ctx context.Context, run holdpoint.Run) ([]string, error) {
	if run.Replaces == "" {
		return nil, nil
	}
	events, err := e.store.Events(ctx, run.Tenant, run.ID)
	var all []string
	for _, ev := range events {
		if ev.Type == "run.linked" && ev.Data["created"] == true {
			all = append(all, ev.Who.ID)
		}
	}
	return all, err
}

// Decide records one named person's decision about one digest. The subject is the authenticated person, never a field.
func (e *Engine) Decide(ctx context.Context, a holdpoint.Actor, approvalID string, r DecisionRequest) (DecisionAnswer, error) {
	ap, err := e.store.ApprovalByID(ctx, a.Tenant, approvalID)
	if err != nil {
		return DecisionAnswer{}, err
	}
	rec, err := e.store.Content(ctx, a.Tenant, ap.RunID)
	if err != nil {
		return DecisionAnswer{}, err
	}
	b, err := e.openBox(a.Tenant, ap.RunID, rec.RunKey)
	if err != nil {
		return DecisionAnswer{}, err
	}
	o, err := e.object(ctx, rec, ap, b)
	if err != nil {
		return DecisionAnswer{}, err
	}
	if err := holdpoint.Permit(a, holdpoint.ActionApprovalDecide, o).Err(); err != nil {
		return DecisionAnswer{}, err
	}
	switch r.Decision {
	case holdpoint.DecisionApprove, holdpoint.DecisionReject, holdpoint.DecisionSendBack:
	default:
		return DecisionAnswer{}, holdpoint.Errorf(holdpoint.CodeInvalidRequest, "decision is approve, reject or send_back")
	}
	if r.Digest == "" {
		return DecisionAnswer{}, holdpoint.Errorf(holdpoint.CodeInvalidRequest, "send the digest of what you saw; a decision binds to it")
	}
	var reason []byte
	decisionID := newID()
	if r.Decision != holdpoint.DecisionApprove || r.Reason != "" {
		if reason, err = reasonText(b, "decision:"+decisionID, r.Reason); err != nil {
			return DecisionAnswer{}, err
		}
	}
	p, err := e.policies.version(ctx, a.Tenant, ap.PolicyHash)
	if err != nil {
		return DecisionAnswer{}, err
	}
	w, err := p.workflow(ap.Workflow)
	if err != nil {
		return DecisionAnswer{}, err
	}
	d := store.Decision{Tenant: a.Tenant, ID: decisionID, ApprovalID: ap.ID, Digest: r.Digest, Person: holdpoint.Person{ID: a.ID, Tenant: a.Tenant, Email: a.Email}, Decision: r.Decision,
		ReasonText: reason, Assurance: a.Assurance, How: a.How, Budget: w.Retry.RunBudget, Who: who(a)}
	if d.Messages, err = e.decisionMessages(ctx, ap, p, w.Gate.Notify, "approval.decided"); err != nil {
		return DecisionAnswer{}, err
	}
	res, err := e.store.Decide(ctx, d)
	if err != nil {
		return DecisionAnswer{}, err
	}
	return DecisionAnswer{Approval: *e.brief(res.Approval), Run: res.Run, Decision: res.Decision, Effects: res.Effects, Repeated: res.Repeated}, nil
}

// decisionMessages tells the gate's shared channels that a question is settled. It says that, never how.
func (e *Engine) decisionMessages(ctx context.Context, ap holdpoint.Approval, p *loaded, channels []string, typ string) ([]store.Message, error) {
	var out []store.Message
	for _, name := range channels {
		if p.Channels[name].Private() {
			continue
		}
		m, err := e.message(ctx, holdpoint.MessageRecord{Tenant: ap.Tenant, RunID: ap.RunID, ApprovalID: ap.ID, Type: typ, Channel: name},
			messageData{Type: typ, ApprovalID: ap.ID, RunID: ap.RunID, Workflow: ap.Workflow})
		if err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, nil
}

// Withdraw takes a question back, or what it released and has not begun.
func (e *Engine) Withdraw(ctx context.Context, a holdpoint.Actor, approvalID, reason string) (DecisionAnswer, error) {
	if err := permit(a, holdpoint.ActionApprovalWithdraw); err != nil {
		return DecisionAnswer{}, err
	}
	ap, err := e.store.ApprovalByID(ctx, a.Tenant, approvalID)
	if err != nil {
		return DecisionAnswer{}, err
	}
	b, err := e.boxOf(ctx, a.Tenant, ap.RunID)
	if err != nil {
		return DecisionAnswer{}, err
	}
	text, err := reasonText(b, "withdraw:"+ap.ID, reason)
	if err != nil {
		return DecisionAnswer{}, err
	}
	res, err := e.store.WithdrawApproval(ctx, a.Tenant, approvalID, text, who(a))
	if err != nil {
		return DecisionAnswer{}, err
	}
	return DecisionAnswer{Approval: *e.brief(res.Approval), Run: res.Run, Effects: res.Effects}, nil
}

// Sweep moves what time has moved and queues the messages that people get about it. What goes wrong with one of them
// keeps no other back.
func (e *Engine) Sweep(ctx context.Context, limit int) (int, error) {
	swept, err := e.store.SweepRuns(ctx, limit)
	if err != nil {
		return 0, err
	}
	var failed error
	for _, s := range swept {
		switch s.What {
		case "approval.expired":
			failed = errors.Join(failed, e.tellExpired(ctx, s))
			e.alert(ctx, s.Run, "run.failed")
		case "run.failed", "run.claimable":
			e.alert(ctx, s.Run, s.What)
		}
	}
	return len(swept), failed
}

// tellExpired tells the gate's shared channels that nobody answered in time.
func (e *Engine) tellExpired(ctx context.Context, s store.Swept) error {
	p, err := e.policies.version(ctx, s.Run.Tenant, s.Approval.PolicyHash)
	if err != nil {
		return err
	}
	w := p.Workflows[s.Run.Workflow]
	if w == nil {
		return nil
	}
	m, err := e.decisionMessages(ctx, s.Approval, p, w.Gate.Notify, "approval.expired")
	if err != nil {
		return err
	}
	return e.queue(ctx, m)
}
