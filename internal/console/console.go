// Package console is the HTML surface: the page on which people decide, and the console in which they look and operate.
// It decodes forms, calls the engine and renders what stands; it decides nothing itself.
//
// Every page is rendered by the server, works without JavaScript (there is none) and under a policy that forbids it.
// What other people, providers and models wrote is only ever shown as escaped text, with everything in it made visible
// that could mislead. GET and HEAD change no run, approval, challenge or effect; every change is a POST from the same
// origin with a nonce that binds it to the session and to the thing it is about.
package console

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"html/template"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/auth"
	"github.com/holdpoint/holdpoint/internal/engine"
	"github.com/holdpoint/holdpoint/internal/httpserver"
	"github.com/holdpoint/holdpoint/internal/lang"
)

//go:embed templates/*.html static/*
var files embed.FS

// Options are what the console needs beside the engine.
type Options struct {
	NonceKey []byte       // at least 32 secret bytes, the same on every replica
	Log      *slog.Logger // nil discards
}

// policyHeader forbids everything that the pages do not need: scripts, frames, other origins, another base.
const policyHeader = "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// maxForm bounds the body of a POST: a reason has at most 4096 bytes, which percent-encoding triples.
const maxForm = 64 << 10

type console struct {
	engine *engine.Engine
	nonces *auth.Nonces
	log    *slog.Logger
	base   string
	pages  map[string]map[string]*template.Template // by language and page
	assets map[string][]byte
	css    string
}

// New makes the handler of /approve/, /console, /login and /logout. Addresses in its pages are built from the engine's
// public address, never from a request. It serves paths with and without that address's own path, so that a proxy may
// strip it or not. It panics if NonceKey is too short.
func New(e *engine.Engine, o Options) http.Handler {
	c := &console{engine: e, nonces: auth.NewNonces(o.NonceKey), log: o.Log, base: e.BasePath(), assets: map[string][]byte{}}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	for _, name := range []string{"style.css", "icon.svg"} {
		c.assets[name] = must(files.ReadFile("static/" + name))
	}
	sum := sha256.Sum256(c.assets["style.css"])
	c.css = hex.EncodeToString(sum[:6])
	c.pages = parsePages(c.base, c.css)

	mux := http.NewServeMux()
	c.route(mux)
	guard := http.NewCrossOriginProtection()
	guard.SetDenyHandler(c.handle(func(*visit) error {
		return holdpoint.Errorf(holdpoint.CodeCrossOrigin, "this form came from another site; open the page here and repeat what you did")
	}))
	return c.secured(ownHost(must(url.Parse(e.PublicURL(""))), guard.Handler(mux)))
}

// ownHost lets the guard compare with the public host where a proxy passes another Host on and the browser is too old to
// say Sec-Fetch-Site.
func ownHost(public *url.URL, next http.Handler) http.Handler {
	origin := public.Scheme + "://" + public.Host
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Sec-Fetch-Site") == "" && r.Header.Get("Origin") == origin && r.Host != public.Host {
			own := *r
			own.Host = public.Host
			r = &own
		}
		next.ServeHTTP(w, r)
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err) // embedded files and an address that the engine has checked do not fail
	}
	return v
}

// parsePages parses each page with the shared templates, once per language.
func parsePages(base, css string) map[string]map[string]*template.Template {
	all := map[string]map[string]*template.Template{}
	names := must(fs.Glob(files, "templates/*.html"))
	for _, l := range lang.Languages {
		shared := template.New("").Funcs(speech{lang: l, base: base, css: css}.funcs())
		for _, name := range names {
			if strings.HasPrefix(path.Base(name), "_") {
				template.Must(shared.Parse(string(must(files.ReadFile(name)))))
			}
		}
		all[l] = map[string]*template.Template{}
		for _, name := range names {
			if page := strings.TrimSuffix(path.Base(name), ".html"); !strings.HasPrefix(page, "_") {
				all[l][page] = template.Must(template.Must(shared.Clone()).Parse(string(must(files.ReadFile(name)))))
			}
		}
	}
	return all
}

func (c *console) route(mux *http.ServeMux) {
	mux.Handle("GET /login", c.handle(c.loginPage))
	mux.Handle("POST /login", c.handle(c.login))
	mux.Handle("POST /logout", c.handle(c.logout))
	mux.Handle("GET /approve/{token}", c.handle(c.approvePage))
	mux.Handle("POST /approve/{token}/open", c.handle(c.approveOpen))
	mux.Handle("POST /approve/{token}", c.handle(c.approveDecide))
	mux.Handle("GET /console/style.css", c.asset("style.css", "text/css; charset=utf-8"))
	mux.Handle("GET /console/icon.svg", c.asset("icon.svg", "image/svg+xml"))
	for pattern, h := range map[string]func(*visit) error{
		"GET /console":                           c.inbox,
		"GET /console/{$}":                       c.inbox,
		"GET /console/approvals/{id}":            c.approvalPage,
		"POST /console/approvals/{id}":           c.approvalDecide,
		"POST /console/approvals/{id}/withdraw":  c.approvalWithdraw,
		"GET /console/runs":                      c.runs,
		"GET /console/runs/{id}":                 c.run,
		"POST /console/runs/{id}/cancel":         c.runCancel,
		"POST /console/runs/{id}/steps/{step}":   c.stepResolve,
		"GET /console/unknown":                   c.unknown,
		"POST /console/effects/{id}/{operation}": c.effectOperate,
		"GET /console/switches":                  c.switches,
		"POST /console/switches":                 c.switchSet,
		"GET /console/connectors":                c.connectors,
		"POST /console/connectors/{name}":        c.connectorRelease,
		"GET /console/people":                    c.people,
		"GET /console/policy":                    c.policy,
		"GET /console/policy/{hash}":             c.policy,
		"POST /console/language":                 c.language,
	} {
		mux.Handle(pattern, c.handle(c.signedIn(h)))
	}
	mux.Handle("GET /console/password", c.handle(c.mayChangePassword(c.passwordPage)))
	mux.Handle("POST /console/password", c.handle(c.mayChangePassword(c.passwordChange)))
	mux.Handle("/", c.handle(func(*visit) error {
		return holdpoint.Errorf(holdpoint.CodeNotFound, "there is no such page")
	}))
}

// secured sets the headers of every answer and takes the public address's own path off.
func (c *console) secured(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policyHeader)
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("X-Robots-Tag", "noindex, nofollow")
		h.Set("Cache-Control", "no-store")
		if h.Get("X-Request-Id") == "" {
			h.Set("X-Request-Id", uuid.Must(uuid.NewV7()).String())
		}
		if c.base != "" && strings.HasPrefix(r.URL.Path, c.base+"/") {
			http.StripPrefix(c.base, next).ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (c *console) asset(name, kind string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", kind)
		w.Header().Set("Cache-Control", "public, max-age=3600")
		if r.URL.Query().Get("v") == c.css {
			w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
		}
		http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(c.assets[name]))
	})
}

// visit is one request with whoever makes it.
type visit struct {
	*console
	w       http.ResponseWriter
	r       *http.Request
	speech  speech
	session string // hash of the session's token, "" when signed out
	token   string // the session's token, to end it
	bound   string // what nonces are bound to: the session, or the link that opened the page
	actor   holdpoint.Actor
	person  holdpoint.Person
}

// handle turns a page into a handler: it finds out who asks and in which language, and says what went wrong.
func (c *console) handle(page func(*visit) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v := &visit{console: c, w: w, r: r, speech: speech{lang: lang.Choose("", r.Header.Get("Accept-Language")), base: c.base, css: c.css}}
		w.Header().Add("Vary", "Accept-Language, Cookie")
		err := v.identify()
		if err == nil && r.Method == http.MethodPost {
			r.Body = http.MaxBytesReader(w, r.Body, maxForm)
			if r.ParseForm() != nil {
				err = holdpoint.Errorf(holdpoint.CodeTooLarge, "this form is too long or not a form; shorten it and send it again")
			}
		}
		if err == nil {
			err = page(v)
		}
		if err != nil {
			v.fail(err)
		}
	})
}

// identify reads the session. No session, or one that is over, is no error.
func (v *visit) identify() error {
	v.token = auth.SessionToken(v.r, v.engine.Secure(), v.cookiePath())
	if v.token == "" {
		return nil
	}
	actor, person, err := v.engine.Session(v.r.Context(), v.token)
	if errors.Is(err, &holdpoint.Error{Code: holdpoint.CodeUnauthenticated}) {
		v.token = ""
		return nil
	}
	if err != nil {
		return err
	}
	httpserver.SetActor(v.r.Context(), actor.ID)
	v.actor, v.person, v.session = actor, person, auth.HashToken(v.token)
	v.bound = v.session
	v.speech.lang = lang.Choose(person.Language, v.r.Header.Get("Accept-Language"))
	return nil
}

func (c *console) cookiePath() string {
	if c.base == "" {
		return "/"
	}
	return c.base
}

// signedIn sends people to the log-in first, and to a password of their own before anything else.
func (c *console) signedIn(page func(*visit) error) func(*visit) error {
	return c.mayChangePassword(func(v *visit) error {
		if v.person.MustChange {
			return v.redirect("/console/password")
		}
		return page(v)
	})
}

func (c *console) mayChangePassword(page func(*visit) error) func(*visit) error {
	return func(v *visit) error {
		if v.session == "" {
			return v.toLogin()
		}
		return page(v)
	}
}

// toLogin sends a signed-out person to the log-in, which leads back to the page. Queries are left behind: they may hold
// what somebody searched for.
func (v *visit) toLogin() error {
	back := "/console"
	if v.r.Method != http.MethodPost {
		back = v.r.URL.Path
	}
	return v.redirect("/login?next=" + url.QueryEscape(back))
}

// redirect leads to one of our own pages with a GET.
func (v *visit) redirect(to string) error {
	http.Redirect(v.w, v.r, v.base+to, http.StatusSeeOther)
	return nil
}

// nonce issues the hidden nonce of a form; checkNonce checks the one that came.
func (v *visit) nonce(purpose, subject string) string {
	return v.nonces.Issue(v.bound, purpose, subject, time.Now())
}

func (v *visit) checkNonce(purpose, subject string) error {
	return v.nonces.Check(v.r.PostFormValue("nonce"), v.bound, purpose, subject, time.Now())
}

// may reports whether the person has a right in the tenant.
func (v *visit) may(a holdpoint.Action) bool {
	return holdpoint.Permit(v.actor, a, holdpoint.Object{Tenant: v.actor.Tenant}) == nil
}
