package console

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/auth"
	"github.com/holdpoint/holdpoint/internal/engine"
	"github.com/holdpoint/holdpoint/internal/httpserver"
)

// card is everything that a decision page shows, in the order of its template.
type card struct {
	engine.Card
	Now     time.Time
	Action  string // where the decision goes
	Nonce   string
	Link    bool // opened by a link alone: no way into the console
	Notice  string
	Reason  string // what the person typed before
	Whole   bool   // every effect is on the page to its last character
	Shown   []shownEffect
	Output  string
	Source  string // the source address if it may be a link
	WhyNot  sentence
	Buttons []button
	Badges  []badge
	Effect  string // what became of the effects, a catalogue key; "" before the decision
	Reruns  []engine.SafeAction
}

// shownEffect is one effect with what the page renders of it. Odd counts what is hidden or misleading in it.
type shownEffect struct {
	engine.EffectView
	First   bool
	Odd     int
	Content node
	Cut     bool
}

// button is one answer. Usable is false where the person may not give it.
type button struct {
	Decision holdpoint.Decision
	Usable   bool
}

// badge is one fact in a word. Tone is good, care or plain.
type badge struct {
	Tone string
	Text string
}

// newCard makes a page from what the engine says about an approval.
func (v *visit) newCard(e engine.Card, action string) card {
	c := card{Card: e, Now: e.Run.Now, Action: action, Whole: e.Run.Content, Output: string(e.Draft.Output), Source: liveLink(e.Draft.SourceURL)}
	left := maxShown
	for _, x := range e.Effects {
		s := shownEffect{EffectView: x, First: e.FirstTime[x.Slot], Odd: oddities(x.Target) + oddities(string(x.Payload))}
		if size := len(x.Target) + len(x.Payload); size <= left {
			left -= size
			s.Content = tree(x.Payload)
			s.Odd = oddities(x.Target) + odd(s.Content)
		} else {
			s.Cut, c.Whole = true, false
			s.Target, s.Content = cut(x.Target, left), node{Kind: "raw", Text: cut(string(x.Payload), left)}
			left = 0
		}
		c.Shown = append(c.Shown, s)
	}
	if len(c.Output) > maxShown {
		c.Output = cut(c.Output, maxShown)
		if e.Approval.Kind == "review" {
			c.Whole = false
		}
	}
	c.WhyNot = v.speech.said(e.WhyNot)
	for _, d := range []holdpoint.Decision{holdpoint.DecisionApprove, holdpoint.DecisionReject, holdpoint.DecisionSendBack} {
		if !slices.Contains(e.Approval.Allowed, d) || d == holdpoint.DecisionApprove && !c.Whole && e.MayDecide {
			continue
		}
		c.Buttons = append(c.Buttons, button{d, e.MayDecide})
	}
	c.Badges, c.Effect = v.badges(e), outcome(e)
	for _, a := range e.Run.SafeActions {
		if a.Action == "claim" || a.Action == "replace" || a.Action == "resend" {
			c.Reruns = append(c.Reruns, a)
		}
	}
	return c
}

// cut gives at most n bytes of s, ending between two characters.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}

// odd counts the marks in a document.
func odd(n node) int {
	total := oddities(n.Name) + oddities(n.Text)
	for _, x := range n.Items {
		total += odd(x)
	}
	return total
}

// badges says in a word each what kind of decision this is.
func (v *visit) badges(e engine.Card) []badge {
	s := v.speech
	if len(e.Effects) == 0 {
		return []badge{{"plain", s.text("badge.nothing")}}
	}
	var out []badge
	undo, first := 0, false
	var classes []string
	for _, x := range e.Effects {
		if x.Reversible != nil {
			undo++
		}
		first = first || e.FirstTime[x.Slot]
		if !slices.Contains(classes, x.Consequence) {
			classes = append(classes, x.Consequence)
		}
	}
	switch undo {
	case len(e.Effects):
		out = append(out, badge{"good", s.text("badge.reversible")})
	case 0:
		out = append(out, badge{"care", s.text("badge.irreversible")})
	default:
		out = append(out, badge{"care", s.text("badge.partly_reversible")})
	}
	out = append(out, badge{"plain", s.text("badge.external")})
	for _, c := range classes {
		out = append(out, badge{"plain", s.word("consequence", c)})
	}
	if first {
		out = append(out, badge{"care", s.text("badge.first_time")})
	} else {
		out = append(out, badge{"plain", s.text("badge.known")})
	}
	return out
}

// outcome says what became of an approved question: sent, unknown, failed, held, switched off, under way or queued.
func outcome(e engine.Card) string {
	if e.Approval.State != holdpoint.ApprovalApproved {
		return ""
	}
	var sent, unknown, failed, held, off, begun int
	for _, x := range e.Effects {
		switch {
		case x.Planned:
		case x.State == holdpoint.EffectCompleted:
			sent++
		case x.State == holdpoint.EffectUnknown:
			unknown++
		case x.State == holdpoint.EffectFailed:
			failed++
		case x.State == holdpoint.EffectSending:
			begun++
		case x.Hold == holdpoint.HoldSwitch:
			off++
		case x.Hold != holdpoint.HoldNone:
			held++
		}
	}
	switch {
	case unknown > 0:
		return "outcome.unknown"
	case failed > 0:
		return "outcome.failed"
	case sent == len(e.Effects):
		return "outcome.sent"
	case held > 0:
		return "outcome.held"
	case off > 0:
		return "outcome.off"
	case begun > 0:
		return "outcome.sending"
	}
	return "outcome.queued"
}

func (c *console) approvalPage(v *visit) error {
	id := v.r.PathValue("id")
	e, err := v.engine.Approval(v.r.Context(), v.actor, id, v.speech.lang)
	if err != nil {
		return err
	}
	return v.showCard(http.StatusOK, e, v.ownPlace(id), "", "")
}

// place is where a card stands: the address that its form goes to, and what its nonce is about beside the digest.
type place struct{ action, about string }

// ownPlace is an approval's page in the console; linkPlace is the page that a token leads to.
func (v *visit) ownPlace(id string) place { return place{v.speech.path("/console/approvals", id), id} }

func (v *visit) linkPlace(token string) place {
	return place{v.speech.path("/approve", token), "link " + auth.HashToken(token)}
}

// showCard renders a card with a nonce that binds the form to who looks, to the place and to the digest.
func (v *visit) showCard(status int, e engine.Card, at place, notice, reason string) error {
	d := v.newCard(e, at.action)
	d.Notice, d.Reason = notice, reason
	d.Nonce = v.nonce("decide", at.about+" "+e.Approval.Digest)
	d.Link = v.actor.How == holdpoint.HowLink
	return v.show(status, "approval", "title.approval", "inbox", d)
}

// answer is what the decision form sent.
func (v *visit) answer() engine.DecisionRequest {
	return engine.DecisionRequest{Decision: holdpoint.Decision(v.r.PostFormValue("decision")), Digest: v.r.PostFormValue("digest"),
		Reason: v.reason()}
}

func (c *console) approvalDecide(v *visit) error {
	id, answer := v.r.PathValue("id"), v.answer()
	if err := v.checkNonce("decide", v.ownPlace(id).about+" "+answer.Digest); err != nil {
		return err
	}
	_, err := v.engine.Decide(v.r.Context(), v.actor, id, answer)
	if err != nil {
		return v.undecided(err, id, v.ownPlace(id), answer.Reason)
	}
	return v.redirect("/console/approvals/" + id)
}

// notices are what the card says when it comes back because a decision was not taken.
var notices = map[holdpoint.Code]string{
	holdpoint.CodeAlreadyDecided: "conflict.already_decided", holdpoint.CodeStaleDigest: "conflict.stale_digest",
	holdpoint.CodeNotAllowedNow: "conflict.not_allowed_now", holdpoint.CodeReasonRequired: "conflict.reason_required",
}

// undecided shows the card again with what kept the decision from being taken, where a person can do something about it.
func (v *visit) undecided(cause error, id string, at place, reason string) error {
	notice := notices[codeOf(cause)]
	if notice == "" {
		return cause
	}
	e, err := v.engine.Approval(v.r.Context(), v.actor, id, v.speech.lang)
	if err != nil {
		return errors.Join(cause, err)
	}
	return v.showCard(httpserver.Status(codeOf(cause)), e, at, notice, reason)
}

func (c *console) approvalWithdraw(v *visit) error {
	id := v.r.PathValue("id")
	if err := v.checkNonce("withdraw", id); err != nil {
		return err
	}
	if _, err := v.engine.Withdraw(v.r.Context(), v.actor, id, v.reason()); err != nil {
		return err
	}
	return v.redirect("/console/approvals/" + id)
}
