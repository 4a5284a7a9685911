package main

import (
	"context"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unicode"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// list lists objects whose texts can be printed: a router or a tenant determines some of them.
func (t *tool) list(ctx context.Context, objects client.ObjectList, in ...client.ListOption) error {
	if err := t.client.List(ctx, objects, in...); err != nil {
		return fmt.Errorf("listing %s: %w", strings.TrimPrefix(fmt.Sprintf("%T", objects), "*v1alpha1."), err)
	}
	makePrintable(reflect.ValueOf(objects).Elem())
	return nil
}

// makePrintable replaces the texts in a value, except for those in maps.
func makePrintable(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		if v.CanSet() {
			v.SetString(printable(v.String()))
		}
	case reflect.Pointer:
		if !v.IsNil() {
			makePrintable(v.Elem())
		}
	case reflect.Struct:
		for _, field := range v.Fields() {
			makePrintable(field)
		}
	case reflect.Slice:
		for i := range v.Len() {
			makePrintable(v.Index(i))
		}
	}
}

// printable replaces what a terminal would not print as a character: line ends and tabs by spaces; other control
// characters, also those of a terminal's escape sequences, and marks of the direction of text by Go's escapes.
func printable(text string) string {
	var out strings.Builder
	for _, r := range text {
		switch {
		case unicode.IsPrint(r):
			out.WriteRune(r)
		case unicode.IsSpace(r):
			out.WriteByte(' ')
		default:
			out.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return out.String()
}
