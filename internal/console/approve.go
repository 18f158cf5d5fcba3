package console

import (
	"net/http"
	"strings"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/auth"
	"github.com/holdpoint/holdpoint/internal/engine"
)

// neutralTick is how long the neutral page's nonce stays the same. The nonce is then as old as this at most, and the page
// is the same, byte for byte, for every token.
const neutralTick = time.Hour

// neutral is the page that says nothing about a token. Its form has no address of its own, so that it goes to the page's
// own address and the page does not name the token.
type neutral struct {
	Nonce   string
	Refused bool
	Signed  bool
}

// approvePage shows a signed-in person what the token leads to, as far as that person may see, and everybody else one
// page that is the same for every token. It changes nothing.
func (c *console) approvePage(v *visit) error {
	if v.session == "" {
		return v.neutral(http.StatusOK, false)
	}
	if v.person.MustChange {
		return v.redirect("/console/password")
	}
	ch, err := v.engine.ChallengeOf(v.r.Context(), v.actor, v.r.PathValue("token"))
	if err != nil {
		return v.shut(err, false)
	}
	e, err := v.engine.Approval(v.r.Context(), v.actor, ch.ApprovalID, v.speech.lang)
	if err != nil {
		return v.shut(err, false)
	}
	return v.showCard(http.StatusOK, e, v.linkPlace(v.r.PathValue("token")), "", "")
}

// neutral renders the page that says nothing. Refused is the answer to an attempt to open, one for all causes.
func (v *visit) neutral(status int, refused bool) error {
	n := neutral{Refused: refused, Signed: v.session != ""}
	n.Nonce = v.nonces.Issue("", "approve", "", time.Now().Truncate(neutralTick))
	return v.show(status, "neutral", "title.neutral", "", n)
}

// shut gives the neutral page in place of an error that would tell something about a token.
func (v *visit) shut(err error, refused bool) error {
	status := http.StatusOK
	if refused {
		status = http.StatusNotFound
	}
	switch codeOf(err) {
	case holdpoint.CodeNotFound, holdpoint.CodeForbidden, holdpoint.CodeInsufficientScope, holdpoint.CodeUnauthenticated:
		return v.neutral(status, refused)
	}
	return err
}

// byLink makes the holder of the token the actor of this visit, at link assurance, and binds its nonces to the token.
func (v *visit) byLink(token string) (holdpoint.Challenge, error) {
	a, ch, err := v.engine.LinkActor(v.r.Context(), token)
	if err == nil {
		v.actor, v.bound = a, linkSession(token)
	}
	return ch, err
}

func linkSession(token string) string { return "link " + auth.HashToken(token) }

// approveOpen opens the content where the gate lets a link do that. It is what counts as opened.
func (c *console) approveOpen(v *visit) error {
	if err := v.nonces.Check(v.r.PostFormValue("nonce"), "", "approve", "", time.Now()); err != nil {
		return err
	}
	token := v.r.PathValue("token")
	if v.session != "" {
		return v.openSigned(token)
	}
	ch, err := v.byLink(token)
	if err == nil {
		err = v.engine.OpenLink(v.r.Context(), ch)
	}
	if err != nil {
		return v.shut(err, true)
	}
	return v.linkCard(http.StatusOK, ch.ApprovalID, token, "", "")
}

// openSigned notes the opening for somebody who turns out to be signed in, and leads to the page that shows it.
func (v *visit) openSigned(token string) error {
	ch, err := v.engine.ChallengeOf(v.r.Context(), v.actor, token)
	if err == nil {
		err = v.opened(ch)
	}
	if err != nil {
		return v.shut(err, true)
	}
	return v.redirect("/approve/" + token)
}

// opened notes that a person opened their own challenge. One that cannot be opened any more stays as it is.
func (v *visit) opened(ch holdpoint.Challenge) error {
	if !strings.EqualFold(ch.Email, v.actor.Email) {
		return nil
	}
	err := v.engine.OpenLink(v.r.Context(), ch)
	if codeOf(err) == holdpoint.CodeNotFound {
		return nil
	}
	return err
}

// linkCard renders the card for somebody who has only the link.
func (v *visit) linkCard(status int, approval, token, notice, reason string) error {
	e, err := v.engine.Approval(v.r.Context(), v.actor, approval, v.speech.lang)
	if err != nil {
		return v.shut(err, true)
	}
	return v.showCard(status, e, v.linkPlace(token), notice, reason)
}

// approveDecide takes the answers of the page at the token's own address: to log in, to open, or a decision.
func (c *console) approveDecide(v *visit) error {
	token := v.r.PathValue("token")
	switch v.r.PostFormValue("open") {
	case "link":
		return c.approveOpen(v)
	case "login":
		next := "/approve/" + token
		if v.session != "" {
			return v.redirect(v.localNext(next))
		}
		return v.showLogin(http.StatusOK, loginForm{Next: next})
	}
	answer := v.answer()
	if v.session == "" {
		v.bound = linkSession(token)
	}
	// Before the token is looked at: a wrong nonce is answered alike for every token.
	if err := v.checkNonce("decide", v.linkPlace(token).about+" "+answer.Digest); err != nil {
		return err
	}
	var ch holdpoint.Challenge
	var err error
	if v.session != "" {
		ch, err = v.engine.ChallengeOf(v.r.Context(), v.actor, token)
	} else {
		ch, err = v.byLink(token)
	}
	if err != nil {
		return v.shut(err, true)
	}
	return v.decideBy(ch, token, answer)
}

// decideBy records the decision of whoever acts. The person's own challenge counts as opened by it.
func (v *visit) decideBy(ch holdpoint.Challenge, token string, answer engine.DecisionRequest) error {
	if err := v.opened(ch); err != nil {
		return err
	}
	_, err := v.engine.Decide(v.r.Context(), v.actor, ch.ApprovalID, answer)
	switch {
	case err != nil && notices[codeOf(err)] == "" && v.session == "":
		return v.shut(err, true)
	case err != nil:
		return v.undecided(err, ch.ApprovalID, v.linkPlace(token), answer.Reason)
	case v.session == "":
		// Without a session no address would show it afterwards: the receipt is this answer.
		return v.linkCard(http.StatusOK, ch.ApprovalID, token, "", "")
	}
	return v.redirect("/approve/" + token)
}
