// Calls methods of the official Go client, as the test asks on standard input.
//
// One argument: the server's address. Prints the names of all methods, then one JSON line for each line that it reads.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"reflect"
	"strings"
	"unicode"

	svix "github.com/svix/svix-webhooks/go"
)

type task struct {
	Token   string
	Method  string
	Path    []string
	Body    json.RawMessage
	Options json.RawMessage
}

type failure struct {
	Failure string `json:"failure"`
}

type refusal struct {
	Status int             `json:"status"`
	Error  json.RawMessage `json:"error"`
}

func connect(token string) *svix.Svix {
	server, err := url.Parse(os.Args[1])
	if err != nil {
		panic(err)
	}
	client, err := svix.New(token, &svix.SvixOptions{ServerUrl: server})
	if err != nil {
		panic(err)
	}
	return client
}

func snake(name string) string {
	var text strings.Builder
	for place, letter := range name {
		if unicode.IsUpper(letter) && place > 0 {
			text.WriteByte('_')
		}
		text.WriteRune(unicode.ToLower(letter))
	}
	return text.String()
}

// methods collects the methods of all resources that a client or resource holds.
func methods(holder reflect.Value, prefix string, found map[string]reflect.Value) map[string]reflect.Value {
	for place := 0; place < holder.Elem().NumField(); place++ {
		field := holder.Elem().Type().Field(place)
		if !field.IsExported() {
			continue
		}
		resource, name := holder.Elem().Field(place), prefix+snake(field.Name)+"."
		for number := 0; number < resource.NumMethod(); number++ {
			found[name+snake(resource.Type().Method(number).Name)] = resource.Method(number)
		}
		methods(resource, name, found)
	}
	return found
}

func decode(kind reflect.Type, text json.RawMessage) (reflect.Value, error) {
	made := reflect.New(kind)
	return made, json.Unmarshal(text, made.Interface())
}

func arguments(kind reflect.Type, given task) ([]reflect.Value, error) {
	list := []reflect.Value{reflect.ValueOf(context.Background())}
	for number := 1; number < kind.NumIn(); number++ {
		switch wanted := kind.In(number); wanted.Kind() {
		case reflect.String:
			list = append(list, reflect.ValueOf(given.Path[0]))
			given.Path = given.Path[1:]
		case reflect.Pointer:
			options, err := decode(wanted.Elem(), given.Options)
			if err != nil {
				return nil, err
			}
			list = append(list, options)
		default:
			body, err := decode(wanted, given.Body)
			if err != nil {
				return nil, err
			}
			list = append(list, body.Elem())
		}
	}
	return list, nil
}

func answer(given task) any {
	call := methods(reflect.ValueOf(connect(given.Token)), "", map[string]reflect.Value{})[given.Method]
	list, err := arguments(call.Type(), given)
	if err != nil {
		return failure{err.Error()}
	}
	results := call.Call(list)
	if err, _ := results[len(results)-1].Interface().(error); err != nil {
		var refused *svix.Error
		if errors.As(err, &refused) && json.Valid(refused.Body()) {
			return refusal{refused.Status(), refused.Body()}
		}
		return failure{fmt.Sprintf("%T: %v", err, err)}
	}
	if len(results) == 1 {
		return map[string]any{"value": nil}
	}
	return map[string]any{"value": results[0].Interface()}
}

func main() {
	input, output := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	names := []string{}
	for name := range methods(reflect.ValueOf(connect("")), "", map[string]reflect.Value{}) {
		names = append(names, name)
	}
	output.Encode(names)
	for {
		var given task
		if input.Decode(&given) != nil {
			return
		}
		if err := output.Encode(answer(given)); err != nil {
			output.Encode(failure{err.Error()})
		}
	}
}
