package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// address is the template of a request URL. Scheme and host are constant, so that no event and no draft can choose
// where a request goes.
type address struct {
	text   text
	origin string // scheme://host[:port] in lower case
}

// newAddress checks the constant parts of a URL template.
func newAddress(t text) (address, error) {
	if len(t) == 0 || t[0].literal == "" {
		return address{}, errors.New("begin with a constant https:// address")
	}
	var whole strings.Builder
	for _, p := range t {
		if p.expr != nil || p.secret != "" {
			whole.WriteByte('x') // no hexadecimal digit: a cut-off escape before a value does not parse
			continue
		}
		if strings.ContainsFunc(p.literal, func(r rune) bool { return r <= ' ' || r > '~' || r == '\\' || r == '#' }) {
			return address{}, errors.New("percent-encode spaces, backslashes and other than ASCII characters, and leave out the fragment")
		}
		whole.WriteString(p.literal)
	}
	u, err := url.Parse(whole.String())
	switch {
	case err != nil:
		return address{}, errors.New("write a well-formed URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return address{}, errors.New("use https:// or http://")
	case u.Hostname() == "":
		return address{}, errors.New("name a host")
	case u.User != nil:
		return address{}, errors.New("send credentials in a header, not in the address")
	}
	_, rest, _ := strings.Cut(t[0].literal, "://")
	if len(t) > 1 && !strings.ContainsAny(rest, "/?") {
		return address{}, errors.New("keep scheme and host constant; expressions stand in the path and the query")
	}
	if slices.ContainsFunc(strings.Split(u.Path, "/"), isDots) {
		return address{}, errors.New("leave out . and .. segments")
	}
	return address{t, strings.ToLower(u.Scheme + "://" + u.Host)}, nil
}

func isDots(segment string) bool { return segment == "." || segment == ".." }

// render gives the URL. Every value is percent-encoded whole: it stays inside its path segment or query value.
func (a address) render(vars map[string]any, s Secrets) (string, error) {
	var b strings.Builder
	query := false
	err := a.text.each(vars, s, func(v string, foreign bool) error {
		if !foreign {
			query = query || strings.Contains(v, "?")
			b.WriteString(v)
			return nil
		}
		if !query && (v == "" || isDots(v)) {
			return errors.New("a value in the path is empty, . or ..; it would address something else")
		}
		b.WriteString(percentEncode(v))
		return nil
	})
	if err != nil {
		return "", err
	}
	u, err := url.Parse(b.String())
	if err != nil || strings.ToLower(u.Scheme+"://"+u.Host) != a.origin {
		return "", errors.New("the address does not parse")
	}
	return b.String(), nil
}

// percentEncode leaves only the unreserved characters of RFC 3986 as they are.
func percentEncode(s string) string {
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~", c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// isLoopback reports whether a host name means this machine.
func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}
