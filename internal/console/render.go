package console

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/httpserver"
	"github.com/holdpoint/holdpoint/internal/lang"
)

// page is what the frame of every page needs; Body is the page's own.
type page struct {
	Title     string // a catalogue key
	Nav       string // the entry of the navigation that this page belongs to
	Person    string // e-mail address, "" when signed out
	Signed    bool   // show navigation
	Languages []string
	Language  string
	Logout    string // nonces
	Chosen    string
	Back      string // where the choice of a language leads
	Body      any
}

// errorPage is the template that says what went wrong.
const errorPage = "error"

// show renders one page.
func (v *visit) show(status int, name, title, nav string, body any) error {
	p := page{Title: title, Nav: nav, Body: body, Languages: lang.Languages, Language: v.speech.lang}
	if v.session != "" {
		p.Person, p.Signed = v.person.Email, !v.person.MustChange
		p.Logout, p.Chosen, p.Back = v.nonce("logout", ""), v.nonce("language", ""), backTo(v.r)
	}
	if name == errorPage {
		p.Back = "/console" // the address that was asked for is not said again
	}
	var out bytes.Buffer
	if err := v.pages[v.speech.lang][name].ExecuteTemplate(&out, "page", p); err != nil {
		return err
	}
	v.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	v.w.WriteHeader(status)
	_, _ = v.w.Write(out.Bytes()) // whoever has gone away needs no answer
	return nil
}

// backTo is the page to return to after choosing a language; links with a token are not carried around.
func backTo(r *http.Request) string {
	if r.Method != http.MethodPost && localPath(r.URL.Path) && strings.HasPrefix(r.URL.Path, "/console") {
		return r.URL.Path
	}
	return "/console"
}

// problem is what an error page says. Kind is the end of the keys of its title and text.
type problem struct {
	Kind    string
	Code    holdpoint.Code
	Message string
	Request string
	Wait    int // seconds
}

// fail says what went wrong, without content and without the address that was asked for.
func (v *visit) fail(err error) {
	if errors.Is(err, context.Canceled) && v.r.Context().Err() != nil {
		return
	}
	var e *holdpoint.Error
	if !errors.As(err, &e) {
		e = holdpoint.Errorf(holdpoint.CodeInternal, "").Wrap(err)
	}
	id := v.w.Header().Get("X-Request-Id")
	switch e.Code {
	case holdpoint.CodeUnauthenticated:
		_ = v.toLogin()
		return
	case holdpoint.CodePasswordChange:
		_ = v.redirect("/console/password")
		return
	case holdpoint.CodeInternal, holdpoint.CodeUnavailable:
		v.log.ErrorContext(v.r.Context(), "page failed", "request_id", id, "code", e.Code, "error", err)
	}
	p := problem{Kind: kindOf(e.Code), Code: e.Code, Request: id}
	switch p.Kind {
	case "forbidden", "conflict", "invalid":
		p.Message = e.Message
	}
	wait, asked := e.Detail["retry_after"].(int)
	if asked {
		p.Wait = wait
	}
	if asked || e.Code == holdpoint.CodeUnavailable {
		v.w.Header().Set("Retry-After", strconv.Itoa(max(1, wait)))
	}
	if err := v.show(httpserver.Status(e.Code), errorPage, "title.error", "", p); err != nil {
		v.log.ErrorContext(v.r.Context(), "error page failed", "request_id", id, "error", err)
		http.Error(v.w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
	}
}

// kindOf gathers the codes that a page answers alike.
func kindOf(c holdpoint.Code) string {
	switch c {
	case holdpoint.CodeBadNonce:
		return "stale"
	case holdpoint.CodeCrossOrigin:
		return "origin"
	}
	switch httpserver.Status(c) {
	case http.StatusNotFound:
		return "not_found"
	case http.StatusForbidden, http.StatusUnauthorized:
		return "forbidden"
	case http.StatusConflict:
		return "conflict"
	case http.StatusRequestEntityTooLarge:
		return "large"
	case http.StatusTooManyRequests:
		return "slow"
	case http.StatusInternalServerError:
		return "internal"
	case http.StatusServiceUnavailable:
		return "unavailable"
	}
	return "invalid"
}

// codeOf gives the code of an error, "" if it has none.
func codeOf(err error) holdpoint.Code {
	var e *holdpoint.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}
