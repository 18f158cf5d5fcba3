// Package httpserver is what every HTTP surface of Holdpoint shares: handlers that return errors, the one table from
// error code to status, limits, strict reading of JSON, and the middleware around all of it. It knows no use case.
package httpserver

import (
	"net/http"
	"reflect"
	"strings"
)

// Handler answers a request or returns an error, which is rendered as a problem document.
type Handler func(w http.ResponseWriter, r *http.Request) error

// ServeHTTP implements http.Handler.
func (h Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	notePattern(r)
	if err := h(w, r); err != nil {
		Render(w, r, err)
	}
}

// WriteJSON answers with a JSON document that no cache keeps. A nil slice or map of v is written as [] or {}, so that
// callers meet null only where a value is really absent.
func WriteJSON(w http.ResponseWriter, status int, v any) error {
	body, err := encode(Filled(v))
	if err != nil {
		return err
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(body) // a caller that went away gets nothing
	return nil
}

// Filled returns v with empty slices and maps in place of nil ones. v itself is not changed.
func Filled(v any) any {
	if v == nil {
		return nil
	}
	c := reflect.New(reflect.TypeOf(v)).Elem()
	c.Set(reflect.ValueOf(v))
	fill(c)
	return c.Interface()
}

// fill works on a settable copy; what hangs on it by reference is copied before it is changed.
func fill(v reflect.Value) {
	if writesItself(v.Type()) {
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if f.IsExported() && !strings.HasPrefix(f.Tag.Get("json"), "-") {
				fill(v.Field(i))
			}
		}
	case reflect.Pointer:
		if !v.IsNil() {
			c := reflect.New(v.Type().Elem())
			c.Elem().Set(v.Elem())
			fill(c.Elem())
			v.Set(c)
		}
	case reflect.Map:
		if v.IsNil() {
			v.Set(reflect.MakeMap(v.Type()))
		}
	case reflect.Slice:
		c := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		reflect.Copy(c, v)
		for i := range c.Len() {
			fill(c.Index(i))
		}
		v.Set(c)
	}
}
