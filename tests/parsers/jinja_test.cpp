// Chat templates: the expected texts come from Python's Jinja2 3.1.6 with the settings of transformers.
#include "llama/jinja.h"

#include <doctest/doctest.h>

#include <fstream>
#include <string>
#include <vector>

#include "llama/chat_template.h"
#include "llama/error.h"
#include "support/scratch_directory.h"

namespace jinja_test {
namespace {

using doctest::Contains;
using llama::jinja::Json;

Json variables() {
  return Json::parse(R"({"messages": [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "Hi\n"},
    {"role": "assistant", "content": "<think>hm</think>Hello"}, {"role": "user", "content": "Größe?"}],
    "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>", "tools": null, "n": 7, "items": [3, 1, 2],
    "d": {"a": 1, "b": [true, null, 1.5, "x\"ü"]}})");
}

std::string render(const std::string& text) { return llama::jinja::Template(text, "t.json").render(variables()); }

struct Case {
  const char* text;
  const char* expected;
};

// clang-format off
const std::vector<Case> kCases = {
    {R"t({% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '[' + message['role'] + ']\n\n' + message['content'] | trim + '[end]' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '[assistant]\n\n' }}{% endif %})t",
     R"t(<s>[system]

Be brief.[end][user]

Hi[end][assistant]

<think>hm</think>Hello[end][user]

Größe?[end][assistant]

)t"},
    {R"t({%- if tools %}
    {{- 'tools' }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<start>system\n' + messages[0].content + '<end>\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi and message.role == "user" and message.content is string and not(message.content.startswith('<r>') and message.content.endswith('</r>')) %}
        {%- set ns.multi = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<start>' + message.role + '\n' + message.content + '<end>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content %}
        {%- if '</think>' in content %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last %}
            {{- 'late' }}
        {%- else %}
            {{- '<start>' ~ message.role ~ '\n' ~ content ~ '<end>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<start>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
)t",
     R"t(<start>system
 Be brief. <end>
<start>user
Hi
<end>
<start>assistant
Hello<end>
<start>user
Größe?<end>
<start>assistant
)t"},
    {R"t({%- if messages[0]['role'] == 'system' %}
    {%- set first = messages[0]['content'] | trim + '\n\n' %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set first = '' %}
    {%- set rest = messages %}
{%- endif %}
{{ bos_token }}
{%- for message in rest %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('roles must alternate') }}
    {%- endif %}
    {%- if message.role == 'user' %}
        {{- '[INST] ' + (first if loop.first else '') + message.content | trim + ' [/INST]' }}
    {%- else %}
        {{- ' ' + message.content + eos_token }}
    {%- endif %}
{%- endfor %})t",
     R"t(<s>[INST] Be brief.

Hi [/INST] <think>hm</think>Hello</s>[INST] Größe? [/INST])t"},
    {R"t(a
  {% if true %}
  b
  {% endif %}
c
)t",
     R"t(a
  b
c)t"},
    {R"t(a {%- if true -%}  b  {%- endif %} c)t",
     R"t(ab c)t"},
    {R"t(x{# note #}
y)t",
     R"t(xy)t"},
    {R"t(  {# note -#}  y)t",
     R"t(y)t"},
    {R"t({{ 1 }}
{{ 2 }}

)t",
     R"t(1
2
)t"},
    {R"t(a
  {%+ if true %}b{% endif %}
)t",
     R"t(a
  b)t"},
    {R"t({{ '%}' }}{{ "}}" }})t",
     R"t(%}}})t"},
    {R"t({{ 1 + 2 * 3 - 4 // 3 }} {{ 7 / 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 2.5 + 1 }})t",
     R"t(6 3.5 -4 2 3.5)t"},
    {R"t({{ 'a' ~ 1 ~ none ~ true }})t",
     R"t(a1NoneTrue)t"},
    {R"t({{ not n == 7 }} {{ n > 5 and n < 9 }} {{ 0 or 'x' }} {{ '' and 1 }})t",
     R"t(False True x )t"},
    {R"t({{ n in items }} {{ 3 in items }} {{ 'el' in 'hello' }} {{ 'a' not in d }})t",
     R"t(False True True False)t"},
    {R"t({{ missing }}|{{ missing is defined }}|{{ missing|default('z') }}|{{ ''|default('z', true) }}|{{ d.zz is undefined }}|{{ none is none }})t",
     R"t(|False|z|z|True|True)t"},
    {R"t({{ d|tojson }} {{ d.a }} {{ d['b'][1] }})t",
     R"t({"a": 1, "b": [true, null, 1.5, "x\"ü"]} 1 None)t"},
    {R"t({{ d|tojson(indent=2) }}{{ []|tojson }}{{ 'a/<b>&é'|tojson }})t",
     R"t({
  "a": 1,
  "b": [
    true,
    null,
    1.5,
    "x\"ü"
  ]
}[]"a/<b>&é")t"},
    {R"t({{ items[0] }}{{ items[-1] }}{{ items[1:]|join(',') }}{{ items[:-1]|join(',') }}{{ items[::2]|join('-') }}{{ 'Größe'[2:4] }}{{ 'Größe'|length }}{{ 'abc'[::-1] }}{{ items[5:]|length }})t",
     R"t(321,23,13-2öß5cba0)t"},
    {R"t({% for x in items %}{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{{ loop.revindex }}{% endfor %})t",
     R"t(1/3,32/3,23/31)t"},
    {R"t({% for x in [] %}a{% else %}none{% endfor %})t",
     R"t(none)t"},
    {R"t({% for k, v in d.items() %}{{ k }}={{ v|tojson }};{% endfor %})t",
     R"t(a=1;b=[true, null, 1.5, "x\"ü"];)t"},
    {R"t({% for x in range(5) if x % 2 == 0 %}{{ x }}{{ loop.first }}{% endfor %}{% for i in range(4, 0, -2) %}{{ i }}{% endfor %})t",
     R"t(0True2False4False42)t"},
    {R"t({% set ns = namespace(a=[1, 2], b=0) %}{% set before = ns.a %}{% for x in ns.a %}{% set ns.a = ns.a + [x] %}{% set ns.b = ns.b + x %}{% set ns.c = ns.a %}{% endfor %}{{ ns.a|join(',') }} {{ before|join(',') }} {{ ns.b }} {{ ns.c|join(',') }})t",
     R"t(1,2,1,2 1,2 3 1,2,1,2)t"},
    {R"t({% set a = d.b %}{% set b = a[0] %}{% set c = messages[1] %}{{ b }} {{ c.role }} {{ (messages|last).role }} {{ 'Größe'|last }}{{ ''|first }} {{ ['b', 'A', 'a', 1, 1.0, 'B', 2]|unique|join(',') }} {{ ['xßyß', 'ßx']|map('replace', 'ß', 's')|join(' ') }} {{ 'xxaxx'.strip('xy') }})t",
     R"t(True user user e b,A,1,2 xsys sx a)t"},
    {R"t({% set x = 1 %}{% for i in items %}{% set x = i %}{{ x }}{% endfor %}{{ x }})t",
     R"t(3121)t"},
    {R"t({% set ns = namespace(found=false) %}{% for i in items %}{% if i == 1 %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.found }})t",
     R"t(True)t"},
    {R"t({% set t %}a{{ n }}b{% endset %}{{ t|upper }})t",
     R"t(A7B)t"},
    {R"t({{ ' x '|trim }}|{{ 'xxaxx'.strip('x') }}|{{ 'a b  c'.split() | join('+') }}|{{ 'a,b'.split(',')[1] }}|{{ 'aXa'|replace('X', '--') }}|{{ 'aB'|lower }}{{ 'aB'.upper() }})t",
     R"t(x|a|a+b+c|b|a--a|abAB)t"},
    {R"t({{ 'a' if n == 7 else 'b' }}{{ 'c' if n == 8 }}{{ (1, 2)|length }}{{ {'k': [1]}|tojson }})t",
     R"t(a2{"k": [1]})t"},
    {R"t({{ messages|length }}{{ messages[-1]['content'] }}{{ messages[0].get('name', 'nobody') }}{{ d.keys()|list|join(' ') }})t",
     R"t(4Größe?nobodya b)t"},
    {R"t({{ 'it' 'em' }}{{ 'q\'s \\ \t|' }}{{ n is number }}{{ d is mapping }}{{ 'a' is string }}{{ items is iterable }}{{ d is not string }})t",
     R"t(itemq's \ 	|TrueTrueTrueTrueTrue)t"},
    {R"t({% if missing %}a{% elif n == 7 %}b{% else %}c{% endif %})t",
     R"t(b)t"},
    {R"t({{ loop is defined }}{% for a in items %}{% for b in items %}{{ loop.index0 }}{% endfor %}{{ loop.index0 }}{% endfor %})t",
     R"t(False012001210122)t"},
    {R"t({{ items|first }}{{ items|last }}{{ '12'|int + 1 }}{{ 3|string + 'x' }}{{ 'hello you'|capitalize }})t",
     R"t(32133xHello you)t"},
    {R"t({% macro turn(m, end='|') %}[{{ m.role }}]{{ m.content|trim }}{{ end }}{% endmacro %}{% for m in messages %}{{ turn(m) }}{{ turn(m, end=loop.index) if loop.last }}{% endfor %})t",
     R"t([system]Be brief.|[user]Hi|[assistant]<think>hm</think>Hello|[user]Größe?|[user]Größe?4)t"},
    {R"t({%- macro parts(content, depth=2) -%}
    {%- if content is string -%}
        {{- content -}}
    {%- else -%}
        {%- for each in content -%}
            {{- '(' ~ parts(each, depth - 1) ~ ')' if depth else '...' -}}
        {%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{{- parts(['a', ['b', ['c', ['d']]]]) }} {{ parts is defined }}{{ nothing is defined }})t",
     R"t((a)((b)(......)) TrueFalse)t"},
    {R"t({% set before = 1 %}{% macro m(a, b) %}{{ before }}{{ a }}{{ b is undefined }}{{ i is defined }}{% set before = 2 %}{{ before }}{% endmacro %}{% for i in items %}{{ m(i) }};{% endfor %}{{ before }}{{ m(b=4, a=5) }})t",
     R"t(13TrueFalse2;11TrueFalse2;12TrueFalse2;115FalseFalse2)t"},
    {R"t({% set ns = namespace(n=0) %}{% macro count() %}{% set ns.n = ns.n + 1 %}{% endmacro %}{{ count() }}{{ count() }}{{ ns.n }})t",
     R"t(2)t"},
    {R"t({{ messages|selectattr('role', 'equalto', 'user')|list|length }}{{ (messages|selectattr('role', 'eq', 'user')|list)[-1].content }}{{ messages|rejectattr('role', 'in', ['user', 'system'])|map(attribute='content')|join }}{{ messages|selectattr('name', 'defined')|list|length }}{{ tools|selectattr('type')|list|length }})t",
     R"t(2Größe?<think>hm</think>Hello00)t"},
    {R"t({{ messages|map(attribute='role')|unique|join(',') }} {{ items|map('string')|map('upper')|join('-') }} {{ messages|map(attribute='name', default='?')|join }} {{ messages|join('+', attribute='role') }})t",
     R"t(system,user,assistant 3-1-2 ???? system+user+assistant+user)t"},
    {R"t({{ items|select('gt', 1)|list|length }}{{ items|reject('odd')|join }}{{ items|sort|join }}{{ items|sort(reverse=true)|join }}{{ items|min }}{{ items|max }}{{ ['b', 'A', 'a', 'B']|sort|join }}{{ ['b', 'A', 'a', 'B']|unique|join }}{{ messages|sort(attribute='role')|map(attribute='role')|join(' ') }})t",
     R"t(2212332113AabBbAassistant system user user)t"},
    {R"t({% for k, v in {'b': 1, 'A': 3, 'c': 2}|dictsort %}{{ k }}{{ v }}{% endfor %}{% for k, v in {'b': 1, 'a': 3}|dictsort(by='value') %}{{ k }}{% endfor %})t",
     R"t(A3b1c2ba)t"},
    {R"t({% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% for j in 'ab' %}{% if j == 'b' %}{% break %}{% endif %}{{ j }}{% endfor %}{% endfor %})t",
     R"t(0a1a3a4a)t"},
    {R"t({{ 'a\nb\n\nc'|indent }}|{{ 'a\nb'|indent(2, true) }}|{{ '<{}|{}>'.format('x', n) }}|{{ ' 12 '|int }}{{ 'x'|int }}{{ 'x'|int(5) }}{{ 3.9|int }}|{{ 'ab'.capitalize() }})t",
     R"t(a
    b

    c|  a
  b|<x|7>|12053|Ab)t"},
    {R"t({{ strftime_now is defined }}{{ strftime_now('%%') }}{{ raise_exception is defined }}{{ strftime_later is defined }})t",
     R"t(True%TrueFalse)t"},
    {R"t({"a": {{ d|tojson }}}{{ {'k': {'l': 1}}.k.l }}{{ {'k': {'l': 1}}['k']['l']}})t",
     R"t({"a": {"a": 1, "b": [true, null, 1.5, "x\"ü"]}}11)t"},
};
// clang-format on

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

constexpr const char* kBudget = "bytes of texts, items of lists and steps";

void check_refused(const std::string& text, const char* reason) {
  CHECK_THROWS_WITH_AS(static_cast<void>(render(text)), Contains(reason), llama::Error);
}

}  // namespace

TEST_CASE("templates give what Jinja2 gives") {
  for (const Case& each : kCases) {
    CAPTURE(each.text);
    CHECK(render(each.text) == each.expected);
  }
}

TEST_CASE("what a template gets wrong is an error with its line") {
  check_refused("a\n{{ raise_exception('no system') }}",
                "t.json: line 2: the template refuses these messages: no system");
  check_refused("\n\n{% include 'x' %}", "line 3: the statement 'include' is not known here; there are if, for,");
  check_refused("\n{% macro x() %}", "line 2: what begins here lacks its 'endmacro'");
  check_refused("{% macro x(a=1, b) %}{% endmacro %}", "expected a default, as of the parameter before");
  check_refused("{% macro x(a) %}{% endmacro %}\n{{ x(1, 2) }}", "line 2: the macro 'x' takes no argument 2");
  check_refused("{% macro x(a) %}{% endmacro %}{{ x(b=2) }}", "the macro 'x' takes no argument 'b'");
  check_refused("{% macro x() %}\n{{ 1 // 0 }}{% endmacro %}\n{{ x() }}", "line 2: division by 0");
  check_refused("{% for i in items %}{% macro x() %}{% break %}{% endmacro %}{% endfor %}", "'break' stands outside");
  check_refused("{% continue %}", "'continue' stands outside of a loop");
  check_refused("{{ items|map('hex')|list }}", "the filter 'hex' is not known here");
  check_refused("{{ items|select('prime')|list }}", "the test 'prime' is not known here");
  check_refused("{{ n|dictsort }}", "cannot sort the keys of a number");
  check_refused("{{ '{:d}'.format(n) }}", "format() is known here with one {} an argument");
  check_refused("{{ strftime_now() }}", "strftime_now() takes a format");
  check_refused("{% if n %}a", "line 1: what begins here lacks its 'endif'");
  check_refused("{% for x in n %}{% endfor %}", "there are no items in a number");
  check_refused("{% endif %}", "'endif' ends nothing");
  check_refused("a{{ n", "a tag has no end, '}}'");
  check_refused("{{ 'a }}", "a tag has no end");
  check_refused("{{ n | }}", "expected a name");
  check_refused("{{ n | groupby }}", "the filter 'groupby' is not known here");
  check_refused("{{ n is prime }}", "the test 'prime' is not known here");
  check_refused("{{ cycler(1) }}", "the function 'cycler' is not known here");
  check_refused("{{ 'a'.encode() }}", "the method 'encode' is not known here of a text");
  check_refused("\n{{ missing.role }}", "line 2: 'missing' is undefined");
  check_refused("{{ d }}", "cannot print a mapping, but by the filter 'tojson'");
  check_refused("{{ 1 // 0 }}", "division by 0");
  check_refused("{{ 9223372036854775807 + 1 }}", "a number becomes too large");
  check_refused("{{ 99999999999999999999 }}", "too large");
  check_refused("{{ 'a' < 1 }}", "cannot compare a text with a number");
  check_refused("{{ n n }}", "expected the end of the tag, not 'n'");
}

TEST_CASE("a template cannot nest, compute or grow without limits") {
  check_refused("{{ " + repeated("(", 100'000) + "1" + repeated(")", 100'000) + " }}", "nested too deeply");
  check_refused("{{ " + repeated("not ", 100'000) + "1 }}", "nested too deeply");
  check_refused("{{ " + repeated("-", 100'000) + "1 }}", "nested too deeply");
  check_refused("{{ 1" + repeated("+1", 100'000) + " }}", "too long");
  check_refused("{{ n" + repeated(".a", 100'000) + " }}", "too long");
  check_refused(repeated("{% if n %}", 100'000), "nested too deeply");
  check_refused("{% if n %}" + repeated("{% elif n %}", 10'000) + "{% endif %}", "nested too deeply");
  check_refused(std::string(size_t{2} << 20, ' '), "longer than 1 MiB");
  check_refused("{% macro x(n) %}{{ x(n + 1) }}{% endmacro %}{{ x(0) }}", "a macro calls itself without end");
  check_refused("{% for a in range(1000000) %}{% endfor %}", "range() is too long");
  check_refused("{% set ns = namespace(a=[]) %}{% for i in range(1000) %}{% set ns.a = [ns.a] %}{% endfor %}",
                "nested too deeply");
  check_refused("{{ 1" + repeated(" if 0 else 1", 70'000) + " }}", "nested too deeply");
  check_refused("{{ 1" + repeated(" if 0 else 1", 70) + " }}", "line 1: an expression is nested too deeply");
  check_refused("{{ 'a'|map('map'" + repeated(",'map'", 100'000) + ",'list')|list }}", kBudget);
}

TEST_CASE("texts, lists and steps of a template have one budget, whatever makes them") {
  const std::string big =  // 64 KiB
      "{% set ns = namespace(a='aaaaaaaaaaaaaaaa') %}{% for i in range(12) %}{% set ns.a = ns.a ~ ns.a %}{% endfor %}"
      "{% set many = range(10000) %}{% set words = many|map('string')|list %}";
  const std::vector<std::string> greedy = {
      // Steps.
      "{% for a in many %}{% for b in many %}{% endfor %}{% endfor %}",
      "{% macro f(n) %}{% if n > 0 %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(90) }}",
      // Texts.
      "{% for i in many %}{{ ns.a }}{% endfor %}",
      "{% for i in many %}{% set ns.a = ns.a ~ ns.a %}{% endfor %}",
      "{% for i in many %}{% set ns.a = ns.a + ns.a %}{% endfor %}",
      "{% for i in many %}{% set b %}{{ ns.a }}{{ ns.a }}{% endset %}{% set ns.a = b %}{% endfor %}",
      "{% macro f(x) %}{{ x }}{{ x }}{% endmacro %}{% for i in many %}{% set ns.a = f(ns.a) %}{% endfor %}",
      "{{ ns.a|replace('a', ns.a)|length }}",
      "{{ ns.a.replace('a', ns.a)|length }}",
      "{{ words|join(ns.a)|length }}",
      "{% for i in many %}{{ '{}{}'.format(ns.a, ns.a)|length }}{% endfor %}",
      "{{ words|map('replace', '1', ns.a)|list|length }}",
      "{{ many|map(attribute='x', default=ns.a)|list|length }}",
      "{% for i in many %}{{ ns.a|replace('a', '\\n')|indent(64, true, true)|length }}{% endfor %}",
      "{% for i in many %}{{ many|tojson(indent=16)|length }}{% endfor %}",
      "{% for i in many %}{% if ns.a|upper|lower|trim|string == 'b' %}{% endif %}{% endfor %}",
      // Lists.
      "{% for i in many %}{% set ns.a = ns.a|list + ns.a|list %}{% endfor %}",
      "{% set ns.a = many %}{% for i in many %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}",
      "{% set ns.a = many %}{% for i in many %}{% set ns.a = {'a': ns.a, 'b': ns.a} %}{% endfor %}",
      "{% for i in many %}{{ ns.a.split('a')|length }}{% endfor %}",
      "{% for i in many %}{{ ns.a[::-1]|length }}{% endfor %}",
      "{% for i in many %}{{ many[1:]|length }}{% endfor %}",
      "{% for i in many %}{{ many|reverse|length }}{% endfor %}",
      "{% for i in many %}{{ words|sort|length }}{% endfor %}",
      "{% for i in many %}{{ words|unique|length }}{% endfor %}",
      "{% for i in many %}{{ words|max }}{% endfor %}",
      // Reading.
      "{% for i in many %}{% if 'b' in ns.a %}{% endif %}{% endfor %}",
      "{% for i in many %}{{ ns.a|length }}{% endfor %}",
      "{% for i in many %}{{ ns.a[0] }}{% endfor %}",
      "{% for i in many %}{{ ns.a|first }}{% endfor %}",
      "{{ many|select('in', many)|list|length }}",
      "{% for i in many %}{% if many == many %}{% endif %}{% endfor %}",
      "{{ words|map(attribute='0" + repeated(".0", 100'000) + "')|list|length }}",
      "{{ words|map(attribute='" + repeated("0", 100'000) + "')|list|length }}",
  };
  for (const std::string& each : greedy) {
    CAPTURE(each.substr(0, 100));
    check_refused(big + "\n" + each, kBudget);
  }
}

TEST_CASE("a mapping of many keys, which are compared one by one, counts against the budget") {
  std::string entries;
  std::string statements = "{% set ns = namespace() %}";
  std::string parameters;
  for (int i = 0; i < 5000; ++i) {
    entries += "'k" + std::to_string(i) + "':1,";
    statements += "{% set ns.k" + std::to_string(i) + " = 1 %}";
    parameters += "k" + std::to_string(i) + "=1,";
  }
  check_refused("{% set d = {" + entries + "} %}", kBudget);
  check_refused("{% set d = dict(" + parameters + ") %}", kBudget);
  check_refused(statements, kBudget);
  check_refused("{% macro f(" + parameters + ") %}{% endmacro %}{% for i in range(10000) %}{{ f() }}{% endfor %}",
                kBudget);
}

TEST_CASE("searches in texts and lists that a template makes take no quadratic time") {
  const Json given = {{"whole", std::string(4'000'000, 'a')}, {"part", std::string(1'000'000, 'a') + "b"}};
  const auto rendered = [&given](const std::string& text) {
    return llama::jinja::Template(text, "t.json").render(given);
  };
  CHECK(rendered("{{ part in whole }}") == "False");
  CHECK(rendered("{{ whole|replace(part, '')|length }}") == "4000000");
  CHECK(rendered("{{ whole.split(part)|length }}") == "1");
  CHECK(rendered("{{ whole.strip(part|replace('a', 'c')|replace('b', 'a'))|length }}") == "0");
  CHECK(rendered("{{ range(100000)|unique|length }}") == "100000");
  CHECK(rendered("{{ (range(50000)|list + range(50000)|list)|map('string')|unique|length }}") == "50000");
}

TEST_CASE("a template reads conversations of thousands of messages within its budget") {
  Json given = {{"messages", Json::array()}};
  size_t bytes = 0;
  for (int i = 0; i < 5000; ++i) {
    given["messages"].push_back({{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", std::string(1000, 'x')}});
    bytes += 1000;
  }
  const std::string text =
      "{% set ns = namespace(n=0) %}{% for message in messages[::-1] %}{% set ns.n = ns.n + 1 %}{% endfor %}"
      "{% for message in messages %}{% set last = messages|length - 1 == loop.index0 %}"
      "{% if loop.index0 > 0 and messages[loop.index0 - 1].role == message.role %}{{ raise_exception('twice') }}{% "
      "endif %}"
      "{% set content = '<' + message['content'] | trim + '>' %}{% if message.role == 'user' and not last %}"
      "{{ content }}{% else %}{{ content ~ '' }}{% endif %}{% endfor %}{{ ns.n }}";
  CHECK(llama::jinja::Template(text, "t.json").render(given).size() == bytes + 2 * 5000 + 4);
}

TEST_CASE("a checkpoint's template is found in either file, with its tokens") {
  const ScratchDirectory directory;
  CHECK_THROWS_WITH_AS(llama::ChatTemplate(directory.path()), Contains("has no chat template"), llama::Error);
  CHECK_THROWS_WITH_AS(llama::ChatTemplate(directory.path()), Contains("kvq generate --prompt"), llama::Error);
  directory.write("tokenizer_config.json", R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template":
    [{"name": "rag", "template": "no"}, {"name": "default", "template": "{{ bos_token + messages[0].content }}"}]})");
  const llama::ChatTemplate first(directory.path());
  CHECK(first.eos_token() == "</s>");
  CHECK(first.render({{"user", "Hi"}}) == "<s>Hi");
  directory.write("chat_template.jinja", "{{ messages[0].role + eos_token }}\n");
  CHECK(llama::ChatTemplate(directory.path()).render({{"user", "Hi"}}) == "user</s>");
}

}  // namespace jinja_test
