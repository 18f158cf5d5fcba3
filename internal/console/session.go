package console

import (
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/auth"
	"github.com/holdpoint/holdpoint/internal/engine"
	"github.com/holdpoint/holdpoint/internal/lang"
)

// cookieLife is how long a browser keeps the session cookie. The store's own limits decide; this one is not shorter.
const cookieLife = 24 * time.Hour

// loginForm is the log-in. Next and an address typed before are given back.
type loginForm struct {
	Nonce, Next, Email string
	Tenants            bool // ask for the tenant: there are several
	Tenant             string
	Fault              string // a catalogue key
	Wait               int
}

func (c *console) loginPage(v *visit) error {
	next := v.r.URL.Query().Get("next")
	if v.session != "" {
		return v.redirect(v.localNext(next))
	}
	return v.showLogin(http.StatusOK, loginForm{Next: next})
}

// showLogin renders the log-in. Only a local path is carried on as next, and only inside the form.
func (v *visit) showLogin(status int, f loginForm) error {
	if !localPath(f.Next) {
		f.Next = ""
	}
	tenants, err := v.engine.Tenants(v.r.Context())
	if err != nil {
		return err
	}
	f.Nonce, f.Tenants = v.nonce("login", ""), len(tenants) > 1
	if f.Tenant == "" {
		f.Tenant = engine.DefaultTenant
		if len(tenants) == 1 {
			f.Tenant = tenants[0].Name
		}
	}
	return v.show(status, "login", "title.login", "", f)
}

// login checks a password and opens a session. The password is the proof and the same-origin check keeps other sites
// out, so a program may leave the nonce away; a nonce that comes must be right.
func (c *console) login(v *visit) error {
	f := loginForm{Next: v.r.PostFormValue("next"), Email: v.r.PostFormValue("email"), Tenant: v.r.PostFormValue("tenant")}
	if v.r.PostFormValue("nonce") != "" && v.nonces.Check(v.r.PostFormValue("nonce"), "", "login", "", time.Now()) != nil {
		f.Fault = "login.stale"
		return v.showLogin(http.StatusForbidden, f)
	}
	if f.Tenant == "" {
		tenants, err := v.engine.Tenants(v.r.Context())
		if err != nil {
			return err
		}
		f.Tenant = engine.DefaultTenant
		if len(tenants) == 1 {
			f.Tenant = tenants[0].Name
		}
	}
	person, err := v.enter(f.Tenant, f.Email, v.r.PostFormValue("password"))
	switch codeOf(err) {
	case holdpoint.CodeUnauthenticated:
		f.Fault = "login.wrong"
		return v.showLogin(http.StatusUnauthorized, f)
	case holdpoint.CodeRateLimited:
		f.Fault, f.Wait = "login.slow", 60
		return v.showLogin(http.StatusTooManyRequests, f)
	}
	if err != nil {
		return err
	}
	if person.MustChange {
		return v.redirect("/console/password")
	}
	return v.redirect(v.localNext(f.Next))
}

// enter logs in and sets the session cookie.
func (v *visit) enter(tenant, email, password string) (holdpoint.Person, error) {
	remote, _, err := net.SplitHostPort(v.r.RemoteAddr)
	if err != nil {
		remote = v.r.RemoteAddr
	}
	token, person, err := v.engine.Login(v.r.Context(), tenant, email, password, remote)
	if err != nil {
		return person, err
	}
	http.SetCookie(v.w, auth.SessionCookie(token, v.engine.Secure(), v.cookiePath(), cookieLife))
	return person, nil
}

func (c *console) logout(v *visit) error {
	if v.session == "" {
		return v.redirect("/login")
	}
	if err := v.checkNonce("logout", ""); err != nil {
		return err
	}
	if err := v.engine.Logout(v.r.Context(), v.token); err != nil {
		return err
	}
	http.SetCookie(v.w, auth.SessionCookie("", v.engine.Secure(), v.cookiePath(), 0))
	return v.redirect("/login")
}

// localNext is where to go after the log-in: next if it is a path of ours, else the inbox.
func (v *visit) localNext(next string) string {
	if !localPath(next) {
		return "/console"
	}
	if v.base != "" {
		next = strings.TrimPrefix(next, v.base)
	}
	return next
}

// localPath reports whether a path stays on this host: one slash, then no second one, no backslash and nothing that a
// browser would drop.
func localPath(p string) bool {
	if len(p) < 2 || len(p) > 512 || p[0] != '/' || p[1] == '/' || strings.Contains(p, `\`) || strings.Contains(p, "//") {
		return false
	}
	for _, c := range p {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return true
}

// passwordForm changes one's own password.
type passwordForm struct {
	Nonce string
	Must  bool
	Fault string // a catalogue key
}

func (c *console) passwordPage(v *visit) error { return v.showPassword(http.StatusOK, "") }

func (v *visit) showPassword(status int, fault string) error {
	return v.show(status, "password", "title.password", "", passwordForm{v.nonce("password", ""), v.person.MustChange, fault})
}

// passwordChange replaces the password. That ends every session, so it opens a new one at once.
func (c *console) passwordChange(v *visit) error {
	if err := v.checkNonce("password", ""); err != nil {
		return err
	}
	fresh := v.r.PostFormValue("fresh")
	if fresh != v.r.PostFormValue("again") {
		return v.showPassword(http.StatusUnprocessableEntity, "password.differ")
	}
	err := v.engine.ChangePassword(v.r.Context(), v.actor, v.r.PostFormValue("present"), fresh)
	switch codeOf(err) {
	case holdpoint.CodeForbidden:
		return v.showPassword(http.StatusForbidden, "password.wrong")
	case holdpoint.CodeInvalidRequest:
		return v.showPassword(http.StatusUnprocessableEntity, "password.rules")
	}
	if err != nil {
		return err
	}
	if _, err := v.enter(v.actor.Tenant, v.person.Email, fresh); err != nil {
		return v.redirect("/login")
	}
	return v.redirect("/console")
}

// language remembers the language that the person chose.
func (c *console) language(v *visit) error {
	if err := v.checkNonce("language", ""); err != nil {
		return err
	}
	chosen := v.r.PostFormValue("language")
	if !slices.Contains(lang.Languages, chosen) {
		return holdpoint.Errorf(holdpoint.CodeInvalidRequest, "choose one of the languages that are offered")
	}
	if err := v.engine.SetLanguage(v.r.Context(), v.actor, chosen); err != nil {
		return err
	}
	return v.redirect(v.localNext(v.r.PostFormValue("back")))
}
