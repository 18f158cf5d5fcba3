package auth

import (
	"net/http"
	"time"
)

// SessionCookie returns the cookie that carries a session's token: HttpOnly, SameSite=Strict, and Secure where secure
// says that people come by HTTPS (everywhere but loopback). An empty path is `/`. An empty value or a maxAge below one
// second deletes the cookie.
func SessionCookie(value string, secure bool, path string, maxAge time.Duration) *http.Cookie {
	if path == "" {
		path = "/"
	}
	seconds := int(maxAge / time.Second)
	if value == "" || seconds <= 0 {
		value, seconds = "", -1
	}
	return &http.Cookie{
		Name: SessionName(secure, path), Value: value, Path: path, MaxAge: seconds,
		Secure: secure, HttpOnly: true, SameSite: http.SameSiteStrictMode,
	}
}

// SessionName is the name of the session cookie. Where the rules of RFC 6265bis permit it (secure, path `/`), the name
// begins with `__Host-`, so that no other host and no plain HTTP page can set it.
func SessionName(secure bool, path string) string {
	if secure && (path == "/" || path == "") {
		return "__Host-holdpoint"
	}
	return "holdpoint"
}

// SessionToken returns the session's token that r carries under SessionName, or "" if there is none of that form.
func SessionToken(r *http.Request, secure bool, path string) string {
	c, err := r.Cookie(SessionName(secure, path))
	if err != nil {
		return ""
	}
	if kind, ok := KindOf(c.Value); !ok || kind != KindSession {
		return ""
	}
	return c.Value
}
